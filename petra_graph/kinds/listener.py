"""Observing a run: what a training calls while it runs. Terminal output is one listener."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from attrs import field, frozen

from petra_graph.kinds.metric import Scale


@frozen(kw_only=True)
class Started:
    """A run that is about to train.

    Attributes:
        name: of the run.
        directory: of the run.
        epochs: in all.
        micro_batches: in an epoch.
        batch: samples in a micro-batch.
        method: by name.
        schedule: by name, or its depths.
        accumulation: micro-batches in a window.
        stages: their number.
        parameters: number of trained values.
        processes: their number.
        evaluates: the split that evaluations after epochs read: "test", or "validation" if the specification has `data.validation`; its
            name begins those of recorded values.
        tested: the samples of such an evaluation, where it does not read all, as in "64 of 360 samples"; "": all.
        resumed_at: the first forward after the checkpoint from which the run is resumed; None: the run begins.
        notes: of its beginning: a checkpoint, or weights of another run.
        warnings: of its plan, each with the key that changes it; or why the run could not be planned.
        metrics: how the values of the metrics are read that the specification lists, by the names under which they are recorded:
            `scale_of("test/f1", run.metrics)` says which of two values is better.
    """

    name: str
    directory: Path
    epochs: int
    micro_batches: int
    batch: int
    method: str
    schedule: str
    accumulation: int
    stages: int
    parameters: int
    processes: int = 1
    evaluates: Literal["validation", "test"] = "test"
    tested: str = ""
    resumed_at: int | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    metrics: Mapping[str, Scale] = field(factory=dict)


@frozen(kw_only=True)
class EpochEnded:
    """An epoch and, where one fell due, its evaluation.

    Attributes:
        epoch: counted from 1.
        train: means over the training samples, by name: "loss" and the loss's metrics.
        test: likewise over the test samples, with the values of metrics; None: no evaluation fell due, or it read validation samples. A
            metric that is undefined on these samples, whose value is NaN, is not there.
        validation: likewise over the validation samples, if the run has them.
        samples_per_second: of the training part alone.
        learning_rate: at the epoch's end.
    """

    epoch: int
    train: Mapping[str, float]
    test: Mapping[str, float] | None
    samples_per_second: float
    learning_rate: float
    validation: Mapping[str, float] | None = None

    @property
    def evaluated(self) -> Mapping[str, float] | None:
        """The means of the evaluation, of the split that `Started.evaluates` names; None: none fell due."""
        return self.test if self.validation is None else self.validation


class Listener:
    """Observes a run and does nothing: override the calls of interest."""

    def started(self, run: Started) -> None:
        """Begin to observe a run that is about to train."""

    def trained(self, epoch: int, micro_batches: int, means: Mapping[str, float]) -> None:
        """Observe that this number of an epoch's micro-batches is done.

        `means` are those of the epoch so far; on a GPU as of the latest reading, every `run.log_every` micro-batches.
        """

    def warned(self, text: str) -> None:
        """Observe a warning of something that the training shows and that does not end it."""

    def evaluating(self, epoch: int) -> None:
        """Observe that the evaluation after an epoch begins."""

    def epoch_ended(self, report: EpochEnded) -> None:
        """Observe that an epoch and its evaluation are over."""

    def stopped(self) -> None:
        """Stop observing: the training makes no further call, whatever ended it."""

    def testing(self, weights: str) -> None:
        """Observe, after `stopped`, that the test begins with which a run with `data.validation` ends; `weights` says of which weights."""
