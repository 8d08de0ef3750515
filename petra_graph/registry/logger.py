"""What a logger is: it receives the values of `metrics.jsonl` as the run records them, and keeps them elsewhere.

Loggers live in the process that leads, which hosts the head of the first replica, and are called in the order in which
the specification lists them, after the line is in `metrics.jsonl`. They change nothing of a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from attrs import frozen


@frozen(kw_only=True)
class RunInfo:
    """The run that a logger is built for.

    Attributes:
        directory: of the run; `metrics.jsonl` in it ends where a resumed run goes on.
        name: of the run.
        spec: the resolved specification, in TOML's types.
        resumed_at: the micro-batches behind a resumed run: later events will come again. None: the run begins.
    """

    directory: Path
    name: str
    spec: Mapping[str, Any]
    resumed_at: int | None


class Logger(Protocol):
    """A place for a run's values."""

    def record(self, *, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Keep values by name, such as "train/loss"; they may be infinite or no number.

        Args:
            epoch: counted from 1.
            step: micro-batches since the run's start.
            values: what is recorded at once.
        """

    def close(self) -> None:
        """Let nothing be held back; nothing is recorded afterwards."""
