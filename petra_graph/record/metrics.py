"""What happened during a run, one event a line: time, epoch, step, name, value.

`step` counts micro-batches from the run's start. A line is written whole and flushed, so that a killed run leaves a
readable file.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from petra_graph.errors import RunFailed


class Sink(Protocol):
    """Somewhere that events go."""

    def record(self, *, epoch: int, step: int, name: str, value: float) -> None:
        """Take one event."""
        ...

    def close(self) -> None:
        """Write what is left."""
        ...


class JsonLines:
    """Events as lines of `metrics.jsonl`; values that are not finite become null."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def record(self, *, epoch: int, step: int, name: str, value: float) -> None:
        """Append one event.

        Raises:
            RunFailed: the disk refuses.
        """
        event = {
            "time": round(time.time(), 3),
            "epoch": epoch,
            "step": step,
            "name": name,
            "value": value if math.isfinite(value) else None,
        }
        try:
            self._file.write(json.dumps(event) + "\n")
        except OSError as error:
            raise RunFailed(
                f"cannot write {self._path}: {error.strerror or error}", hint="free space on that disk"
            ) from error

    def close(self) -> None:
        """Close the file."""
        try:
            self._file.close()
        except OSError as error:
            raise RunFailed(f"cannot write {self._path}: {error.strerror or error}") from error


class TensorBoard:
    """Events for TensorBoard, which groups names by their first part."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def record(self, *, epoch: int, step: int, name: str, value: float) -> None:
        """Hand one scalar over."""
        self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()


class Metrics:
    """All sinks of a run."""

    def __init__(self, directory: Path) -> None:
        self._sinks: list[Sink] = [JsonLines(directory / "metrics.jsonl")]
        writer = _tensorboard(directory)
        if writer is not None:
            self._sinks.append(TensorBoard(writer))

    def record(self, *, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Record values by name, such as "train/loss"."""
        for name, value in values.items():
            for sink in self._sinks:
                sink.record(epoch=epoch, step=step, name=name, value=float(value))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sink in self._sinks:
            sink.close()


def _tensorboard(directory: Path) -> Any:
    """Return a writer where the extra is installed, else None."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(log_dir=str(directory / "tensorboard"))
