"""Who watches a run: what the session tells, as it happens. Terminal output is one listener."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from attrs import frozen


@frozen(kw_only=True)
class Started:
    """A run that is about to train."""

    name: str
    directory: Path
    epochs: int
    micro_batches: int
    """In an epoch."""
    batch: int
    """Samples in a micro-batch."""
    method: str
    schedule: str
    accumulation: int
    stages: int
    parameters: int
    processes: int = 1


@frozen(kw_only=True)
class EpochEnded:
    """An epoch and, where one fell due, its evaluation."""

    epoch: int
    """Counted from 1."""
    train: Mapping[str, float]
    test: Mapping[str, float] | None
    samples_per_second: float
    """Of the training part alone."""
    learning_rate: float


class Listener(Protocol):
    """What the session calls."""

    def started(self, run: Started) -> None:
        """Tell what is about to train."""
        ...

    def trained(self, epoch: int, micro_batches: int, means: Mapping[str, float]) -> None:
        """Tell that so many micro-batches of an epoch are done; `means` are the epoch's so far."""
        ...

    def evaluating(self, epoch: int) -> None:
        """Tell that the evaluation after an epoch begins."""
        ...

    def epoch_ended(self, report: EpochEnded) -> None:
        """Tell that an epoch and its evaluation are over."""
        ...

    def stopped(self) -> None:
        """Tell that nothing more comes, whatever the reason."""
        ...


class Silence:
    """A listener that does nothing."""

    def started(self, run: Started) -> None:
        """Ignore it."""

    def trained(self, epoch: int, micro_batches: int, means: Mapping[str, float]) -> None:
        """Ignore it."""

    def evaluating(self, epoch: int) -> None:
        """Ignore it."""

    def epoch_ended(self, report: EpochEnded) -> None:
        """Ignore it."""

    def stopped(self) -> None:
        """Ignore it."""
