"""What a callback is: a listener of the run's progress that may also stop it early, and keep tensors with the stages.

    in the process that leads      started, trained, warned, evaluating, evaluated_weights, epoch_ended, stops, stopped, ended,
                                   testing; record, whenever values are in `metrics.jsonl`, and close, at the very end
    in the process of each stage   at_stage, once; the companion that it returns sees every update of that stage

The process that leads hosts the head of the first replica. Callbacks are called in the order in which the specification lists
them. A callback is built in every process, so that its companions are where the stages are: what it writes to, it opens in `started`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attrs import field, frozen

from petra_graph.plugins.loss_and_metric import Scale

if TYPE_CHECKING:
    from torch import Tensor


@frozen(kw_only=True)
class Started:
    """A run that is about to train."""

    name: str
    directory: Path
    epochs: int
    micro_batches: int  # of an epoch
    batch: int
    method: str
    schedule: str  # by name, or its depths
    accumulation: int
    stages: int
    parameters: int
    processes: int = 1
    evaluates: Literal["validation", "test"] = "test"  # the split that evaluations after epochs read
    resumed_at: int | None = None  # the first forward after the checkpoint of a resumed run; None: the run begins
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()  # of its plan, with the keys that change them; or why it could not be planned
    metrics: Mapping[str, Scale] = field(factory=dict)  # what is better of each: scale_of("test/f1", run.metrics)
    spec: Mapping[str, Any] = field(factory=dict, repr=False)  # the resolved specification, in TOML's types


@frozen(kw_only=True)
class EpochEnded:
    """An epoch, counted from 1, and its evaluation: means over the samples by name, "loss" and metrics. One that is undefined, or NaN, is not there."""

    epoch: int
    train: Mapping[str, float]
    test: Mapping[str, float] | None  # None: no evaluation fell due, or it read validation samples
    samples_per_second: float  # of the training part alone
    learning_rate: float
    validation: Mapping[str, float] | None = None

    @property
    def evaluated(self) -> Mapping[str, float] | None:
        return self.test if self.validation is None else self.validation


class Listener:
    """Observes a run and does nothing: override the calls of interest. Epochs are counted from 1."""

    def started(self, run: Started) -> None: ...

    def trained(self, epoch: int, micro_batches: int, means: Mapping[str, float]) -> None:
        """Observe how many micro-batches of the epoch are done, and their means; on a GPU those that were read last (`run.log_every`)."""

    def warned(self, text: str) -> None: ...

    def evaluating(self, epoch: int) -> None: ...

    def epoch_ended(self, report: EpochEnded) -> None: ...

    def stopped(self) -> None:
        """Stop observing: the training makes no further call, whatever ended it."""

    def testing(self, weights: str) -> None:
        """Observe, after `stopped`, that the test begins with which a run with `data.validation` ends; `weights` says of which weights."""


class Companion:
    """A callback's part at one stage, in the process of that stage. Tensors are named "NODE/NAME", as in the weights."""

    def updated(self, updates: int) -> None:
        """Observe an update of the stage, without gradients; `updates` counts the stage's own, from 1."""

    def state(self) -> Mapping[str, Tensor]:
        """Return the tensors to keep in checkpoints, and to hand to the callback at the end of the run."""
        return {}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back the tensors of a checkpoint: those of this stage's nodes, on the stage's device."""


class Callback(Listener):
    """A callback: override the calls of interest. An exception fails the run, and its message names the callback."""

    changes: Literal["nothing", "length", "weights"] = "nothing"
    """The most that it may change of a run; "length": `stops` is asked; "weights": companions may write to the parameters."""
    reads_weights: bool = False  # whether `evaluated_weights` is called; stages of other processes send theirs

    def evaluated_weights(self, epoch: int, weights: Mapping[str, Tensor]) -> None:
        """Observe the weights of all stages after an evaluation, by their names in `weights.safetensors`: on the CPU, not to be changed or kept."""

    def stops(self) -> str:
        """Return why the training is to end now, or "" to continue; called between two epochs, if `changes` is "length"."""
        return ""

    def at_stage(self, parameters: Mapping[str, Tensor]) -> Companion | None:
        """Return the companion of a stage, or None; `at_stage(self, parameters, stage)` is given the stage's facts, too. Parameters are no copies."""
        return None

    def ended(self, weights: Mapping[str, Tensor], kept: Mapping[str, Tensor]) -> Mapping[str, Mapping[str, Tensor]]:
        """Return weights to write into the run's directory, by the names of their files; `kept` are the tensors of all companions."""
        return {}

    def record(self, *, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Keep values by name; `step` counts micro-batches. Those after the checkpoint from which a run is resumed come a second time."""

    def close(self) -> None:
        """Write what is held back: the last call of a run that ends, or fails."""

    def state(self) -> Any:
        """Return what a checkpoint must keep, as JSON; None: nothing."""
        return None

    def restore(self, state: Any) -> None:
        """Take back the state of a checkpoint, after `started`; not called where the checkpoint has no state of this callback."""
