"""The events of a run, one a line: time, epoch, step, name, value.

`step` counts micro-batches from the run's start. A line is written whole or not at all, so that a killed run leaves a
readable file, and so does one whose disk is full.
"""

from __future__ import annotations

import errno
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from attrs import frozen

from petra_graph.errors import RunFailed, SpecError, cannot_write
from petra_graph.plugins.author_code import author_code
from petra_graph.plugins.callback import Logger

METRICS = "metrics.jsonl"
"""The file in a run's directory."""
_SHOWN = 60
"""Characters to show of a line that is not an event."""


@frozen(kw_only=True)
class Position:
    """The end of a run's events at some moment."""

    bytes: int
    """Of `metrics.jsonl`."""
    step: int
    """Micro-batches since the run's start."""


class Metrics:
    """A run's events, as lines and in its loggers."""

    def __init__(self, directory: Path, since: Position | None = None) -> None:
        """Open a run's events.

        Args:
            since: continue from there, and forget the events behind it; None: a new run.

        Raises:
            RunFailed: the disk refuses.
        """
        self.directory = directory
        self._path = directory / METRICS
        if since is not None:
            try:
                os.truncate(self._path, since.bytes)
            except OSError as error:
                raise cannot_write(self._path, error) from error
        self._file = self._path.open("ab", buffering=0)
        self._loggers: list[tuple[str, Logger]] = []

    def add(self, name: str, logger: Logger) -> None:
        """Hand every event to a logger as well; `name` is its name in messages."""
        self._loggers.append((name, logger))

    @property
    def bytes(self) -> int:
        return self._file.seek(0, os.SEEK_END)

    def record(self, *, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Record values by name, such as "train/loss"; those that are not finite become null in the file.

        Raises:
            RunFailed: the disk refuses, and no part of an event is in the file; or a logger fails.
        """
        values = {name: float(value) for name, value in values.items()}
        for name, value in values.items():
            event = {
                "time": round(time.time(), 3),
                "epoch": epoch,
                "step": step,
                "name": name,
                "value": value if math.isfinite(value) else None,
            }
            self._append(event)
        for name, logger in self._loggers:
            _run(name, partial(logger.record, epoch=epoch, step=step, values=values))

    def _append(self, event: Mapping[str, Any]) -> None:
        line, end = (json.dumps(event) + "\n").encode(), self._file.tell()
        try:
            if not os.fstat(self._file.fileno()).st_nlink:  # it would take all events, and nobody would see them
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            while line:  # the system may take a part
                line = line[self._file.write(line) :]
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(end)
            raise cannot_write(self._path, error) from error

    def close(self) -> None:
        """Close the file and the loggers; a second time does nothing.

        Raises:
            RunFailed: the disk refuses the events that a logger held back.
        """
        loggers, self._loggers = self._loggers, []
        with ExitStack() as closing:
            for name, logger in loggers:
                closing.callback(_run, name, logger.close)
            closing.callback(self._file.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The error that ended the run is the first cause; a disk that refuses once more would only hide it.
        with suppress(RunFailed) if error else nullcontext():
            self.close()


def read_events(directory: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the events of a run that have a value, as they were recorded; the run may still be training.

    Raises:
        OSError: the file cannot be read.
        SpecError: a line is not an event.
    """
    path = directory / METRICS
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):  # written at this moment
            return
        try:
            event = json.loads(line)
            _ = int(event["epoch"]), int(event["step"]), event["name"].strip, float(event["value"] or 0)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            hint = "remove that line, or restore the file from a copy"
            shown = line[:_SHOWN].decode(errors="replace").rstrip()
            raise SpecError(f"{path}:{number}: is not an event: {shown}", hint) from None
        if event["value"] is not None:
            yield event


def _run(name: str, action: Callable[[], None]) -> None:
    """Run a logger's code."""
    with author_code(f"{name} failed", error=RunFailed):
        action()
