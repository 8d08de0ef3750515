"""The values of a run for TensorBoard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from petra_graph.errors import cannot_write
from petra_graph.plugins import Callback, Started


class TensorBoard(Callback):
    """Scalars for TensorBoard, in `tensorboard/` of the run's directory.

    A resumed run opens another file, and tells TensorBoard to forget the events after the checkpoint (`purge_step`).
    """

    requires = "tensorboard"
    install = "pip install 'petra-graph[tensorboard]'"

    def started(self, run: Started) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._path = run.directory / "tensorboard"
        purge = {} if run.resumed_at is None else {"purge_step": run.resumed_at + 1}
        self._writer: Any = SummaryWriter(log_dir=str(self._path), **purge)

    def record(self, *, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Write scalars.

        Raises:
            RunFailed: the disk refused these events or earlier ones.
        """
        with _writing(self._path):
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close; errors as of `record`."""
        with _writing(self._path):
            self._writer.close()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error
