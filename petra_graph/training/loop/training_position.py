"""Where a training is: the value that a checkpoint keeps, and from which a training continues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import define, field

from petra_graph.plugins.callback import EpochEnded


def _reports(given: Iterable[EpochEnded | Mapping[str, Any]]) -> list[EpochEnded]:
    return [one if isinstance(one, EpochEnded) else EpochEnded(**one) for one in given]


@define(kw_only=True)
class TrainingPosition:
    """Where a training is; its fields, in their order, are the keys of a checkpoint's manifest."""

    epoch: int = 1
    """The epoch under way, or the next one, counted from 1."""
    evaluates: bool = False
    """Whether the epoch has been trained, and its evaluation is under way."""
    micro_batches_per_epoch: int
    micro_batches: int = 0
    """The number of micro-batches that the head has seen since the run's start."""
    since: int = 0
    """The latest forward at which the pipeline filled again within an epoch, as the micro-batches in flight were discarded."""
    updates: int = 0
    """The number of updates of the last stage in this process, when the position was noted."""
    seconds: float = 0.0
    """Seconds of training, without evaluations."""
    epoch_began: tuple[float, int] = field(default=(0.0, 0), converter=tuple)
    """Seconds and micro-batches before the epoch."""
    train: Mapping[str, float] | None = None
    """The means over the latest epoch that was trained to its end."""
    resumed_from: tuple[int, ...] = field(default=(), converter=tuple)
    """The first forward after each checkpoint from which the run has been resumed."""
    changed: tuple[str, ...] = field(default=(), converter=tuple)
    """What was other at a resume than before, in words."""
    epochs: list[EpochEnded] = field(default=(), converter=_reports)
    """The reports of all finished epochs, also after an interruption."""
    metrics_bytes: int = 0
    """The length of the metrics file after the events up to here."""
    callbacks: Mapping[str, Any] = field(factory=dict)
    """The callbacks' states, when the position was noted."""

    def micro_batches_per_second(self, first: tuple[int, float]) -> float | None:
        """Return the rate after the `first` micro-batches, a number and its seconds; if these are most of a run, return the rate of all."""
        count, seconds = (0, 0.0) if 2 * first[0] > self.micro_batches else first
        spent = self.seconds - seconds
        return (self.micro_batches - count) / spent if self.micro_batches and spent > 0 else None

    @property
    def trained_epochs(self) -> int:
        """The epochs that have been trained; the latest one may not have been evaluated."""
        return self.epoch - 1 + self.evaluates

    @property
    def goes_on_within(self) -> int | None:
        """The forward with which the training of an epoch continues; None where the epoch begins, or has been trained."""
        begun = self.micro_batches > (self.epoch - 1) * self.micro_batches_per_epoch
        return self.micro_batches if begun and not self.evaluates else None
