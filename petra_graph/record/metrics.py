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
from pathlib import Path
from typing import Any, Self

from petra_graph.errors import SpecError, cannot_write

METRICS = "metrics.jsonl"
"""The file in a run's directory."""
_SHOWN = 60
"""Characters to show of a line that is not an event."""


class Metrics:
    """A run's events, as lines and in its callbacks; raises RunFailed if the disk refuses."""

    def __init__(self, directory: Path, since: int | None = None) -> None:
        """Open a run's events; `since`: the length of the file from which to continue, and forget the events behind it."""
        self._path = directory / METRICS
        if since is not None:
            try:
                os.truncate(self._path, since)
            except OSError as error:
                raise cannot_write(self._path, error) from error
        self._file = self._path.open("ab", buffering=0)
        self._callbacks: list[Callable[..., Any]] = []

    def hand_to(self, call: Callable[..., Any]) -> None:
        """Hand every event to a callback as well, by `call("record", ...)`, and `call("close")` at the end."""
        self._callbacks.append(call)

    @property
    def bytes(self) -> int:
        return self._file.seek(0, os.SEEK_END)

    def record(self, *, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Record values by name, such as "train/loss"; those that are not finite become null in the file."""
        values = {name: float(value) for name, value in values.items()}
        for name, value in values.items():
            event = {"time": round(time.time(), 3), "epoch": epoch, "step": step, "name": name}
            self._append({**event, "value": value if math.isfinite(value) else None})
        for call in self._callbacks:
            call("record", epoch=epoch, step=step, values=values)

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
        """Close the file and the callbacks, which may fail to write what they held back; a second time does nothing."""
        callbacks, self._callbacks = self._callbacks, []
        with ExitStack() as closing:
            for call in callbacks:
                closing.callback(call, "close")
            closing.callback(self._file.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        # The error that ended the run is the first cause; a disk that refuses once more would only hide it.
        with suppress(Exception) if error else nullcontext():
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
