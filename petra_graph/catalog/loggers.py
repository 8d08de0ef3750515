"""Callbacks that keep a run's values in files of its directory: `metrics.jsonl`, which it writes itself before, `metrics.csv`, and TensorBoard's.

A resumed run writes `metrics.csv` again from `metrics.jsonl`, which ends at the checkpoint: so its rows are those lines, also if the callback was
added in between. For TensorBoard, it opens another file, and tells it to forget the events after the checkpoint (`purge_step`).
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from petra_graph.errors import cannot_write
from petra_graph.plugins import Callback, Started

_COLUMNS = ("epoch", "step", "name", "value")


class MetricsFile(Callback):
    """The run's own `metrics.jsonl`, which is always written: where it is listed, TensorBoard is not written unasked."""

    def record(self, *, epoch: int, step: int, values: Mapping[str, float]) -> None: ...


class CsvFile(Callback):
    """`metrics.csv` in the run's directory: epoch, step, name, value.

    A value that is not finite is empty. Each row is there before the next event.
    """

    def started(self, run: Started) -> None:
        """Open the file, with the events that the run has already."""
        self._path = run.directory / "metrics.csv"
        try:
            self._file = self._path.open("wb", buffering=0)
            self._write([_COLUMNS])
            with (run.directory / "metrics.jsonl").open(encoding="utf-8") as lines:
                events = (json.loads(line) for line in lines)
                self._write([event[column] for column in _COLUMNS] for event in events)
        except OSError as error:
            raise cannot_write(self._path, error) from error

    def record(self, *, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Append a row for each value.

        Raises:
            RunFailed: the disk refuses; the file then ends with a whole row.
        """
        end = self._file.seek(0, os.SEEK_END)
        try:
            self._write([epoch, step, name, value if math.isfinite(value) else None] for name, value in values.items())
        except OSError as error:
            self._file.truncate(end)
            raise cannot_write(self._path, error) from error

    def close(self) -> None:
        self._file.close()

    def _write(self, rows: Iterable[Iterable[Any]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        content = text.getvalue().encode()
        while content:  # the system may take a part
            content = content[self._file.write(content) :]


class TensorBoard(Callback):
    """Scalars for TensorBoard, in `tensorboard/` of the run's directory, by a writer whose thread fails without a traceback."""

    requires = "tensorboard"
    install = "pip install 'petra-graph[tensorboard]'"

    def started(self, run: Started) -> None:
        """Open a file of events."""
        from torch.utils.tensorboard import SummaryWriter

        self._path = run.directory / "tensorboard"
        purge = {} if run.resumed_at is None else {"purge_step": run.resumed_at + 1}
        self._writer: Any = SummaryWriter(log_dir=str(self._path), **purge)
        self._hook = threading.excepthook
        threading.excepthook = self._thread_failed

    def record(self, *, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Write scalars.

        Raises:
            RunFailed: the disk refused these events or earlier ones.
        """
        with _writing(self._path):
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close.

        Raises:
            RunFailed: the disk refuses.
        """
        try:
            with _writing(self._path):
                self._writer.close()
        finally:
            threading.excepthook = self._hook

    def _thread_failed(self, failure: threading.ExceptHookArgs) -> None:
        """Do not print a traceback of the writer's own thread: the next call raises the same error."""
        if not (isinstance(failure.exc_value, OSError) and type(failure.thread).__module__.startswith("tensorboard.")):
            self._hook(failure)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error
