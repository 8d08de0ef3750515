"""What a callback is: a listener of the run's progress that may also stop it early, and keep tensors beside its stages.

    in the process that leads      started, trained, warned, evaluating, evaluated, evaluated_weights, epoch_ended, stops, ended,
                                   stopped
    in the process of each stage   at_stage, once; the companion that it returns sees every update of that stage

The process that leads hosts the head of the first replica. Callbacks are called in the order in which the specification lists
them, after the loggers have the values. A callback is built in every process, so that its companions are where the stages are.

A declaration says what its callback may change: "nothing", so that the run has the bits that it has without it; "length", so that
`stops` is asked; or "weights", so that its companions may write to the parameters. What a callback returns from `state` is in
every checkpoint, with the tensors of its companions, and comes back to a run that goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from petra_graph.registry.listener import Listener, Started

if TYPE_CHECKING:
    from torch import Tensor


class Companion:
    """A callback's part at one stage, in the process of that stage. Tensors are named "NODE/NAME", as in the weights."""

    def updated(self, updates: int) -> None:
        """Observe an update of the stage, without gradients; `updates` counts the stage's own, from 1."""

    def state(self) -> Mapping[str, Tensor]:
        """Return the tensors to keep in checkpoints, and to hand to the callback at the end of the run."""
        return {}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on with the tensors of a checkpoint, on the stage's device: those of this stage's nodes."""


class Callback(Listener):
    """A callback: override the calls of interest. An exception fails the run, and its message names the callback."""

    def evaluated(self, epoch: int, first: int, outputs: Tensor, targets: Tensor) -> None:
        """Observe a batch of the evaluation after an epoch.

        Args:
            epoch: counted from 1.
            first: position of the batch's first sample in the evaluation, which reads the test data in order.
            outputs: of the head [n, ...], without a graph; not to be changed.
            targets: [n, ...].
        """

    def evaluated_weights(self, epoch: int, weights: Mapping[str, Tensor]) -> None:
        """Observe all weights after the evaluation after an epoch; called only if the declaration has `reads_weights`.

        `petra_graph.load(run.directory, weights=weights)` is the network with them, where `run` is what `started` was given.

        Args:
            epoch: counted from 1.
            weights: parameters and running statistics by their names in `weights.safetensors`, of all stages and on the CPU; not to
                be changed, and not to be kept, since the training goes on in the same memory.
        """

    def stops(self) -> str:
        """Return why the training is to end now, "" to let it go on; asked between two epochs, if `changes` is "length"."""
        return ""

    def at_stage(self, parameters: Mapping[str, Tensor]) -> Companion | None:
        """Return the companion of a stage; None: it needs none.

        Args:
            parameters: of the stage, themselves, a shared one under all its names; to be read in `updated`, and not to be changed
                unless `changes` is "weights".
        """
        return None

    def ended(self, weights: Mapping[str, Tensor], kept: Mapping[str, Tensor]) -> Mapping[str, Mapping[str, Tensor]]:
        """Return weights to write into the run's directory beside its own, by the names of their files.

        Args:
            weights: all parameters and running statistics of a run that is done, or interrupted.
            kept: the tensors of all companions.
        """
        return {}

    def state(self) -> Any:
        """Return what a checkpoint must keep, as JSON; None: nothing."""
        return None

    def restore(self, state: Any) -> None:
        """Go on from a checkpoint's state, after `started`; not called where the checkpoint has none."""


__all__ = ["Callback", "Companion", "Started"]
