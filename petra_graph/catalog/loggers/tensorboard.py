"""Events for TensorBoard, which groups names by their first part.

A resumed run opens another file, and tells TensorBoard to forget the events after the checkpoint (`purge_step`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from petra_graph.errors import cannot_write
from petra_graph.plugins import RunInfo


class TensorBoard:
    """Scalars for TensorBoard, in `tensorboard/` of the run's directory, by a writer whose thread fails without a traceback."""

    requires = "tensorboard"
    install = "pip install 'petra-graph[tensorboard]'"

    def __init__(self, run: RunInfo) -> None:
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
