"""What a callback is: a listener of the run's progress that may also stop it early, and keep tensors with the stages.

    in the process that leads      started, trained, warned, evaluating, evaluated, evaluated_weights, epoch_ended, stops, stopped, ended,
                                   testing
    in the process of each stage   at_stage, once; the companion that it returns sees every update of that stage

The process that leads hosts the head of the first replica. Callbacks are called in the order in which the specification lists
them, after the loggers have the values. A callback is built in every process, so that its companions are where the stages are.

A declaration says what its callback may change: "nothing", so that the run's results are the same bits as without it; "length", so that
`stops` is asked; or "weights", so that its companions may write to the parameters. What a callback returns from `state` is in
every checkpoint, with the tensors of its companions, and is given to `restore` when the run is resumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

from attrs import field, frozen

from petra_graph.kinds.declaration import Declaration
from petra_graph.kinds.listener import Listener
from petra_graph.kinds.plugin_kind import Form, PluginKind, asks_for_stage
from petra_graph.kinds.tensor_trees import Tree
from petra_graph.spec.bounds import OneOf

if TYPE_CHECKING:
    from torch import Tensor

Changes = Literal["nothing", "length", "weights"]
OBSERVES = "observe_stages"
"""The method of a callback that observes operations of all stages of a run of one process, (stages, record, warn) -> begin. Such a callback also has
`problems(micro_batches, processes)` and `chosen(micro_batches)`: while one of the micro-batches that it chooses is on its way, no checkpoint is cut."""


@frozen(kw_only=True)
class CallbackDeclaration(Declaration):
    """A callback; `build` names a function (options) -> Callback.

    Attributes:
        changes: the most that it may change of a run: nothing that the run computes, its number of epochs, or its weights.
        reads_weights: whether `evaluated_weights` is to be called; the stages of other processes then send theirs.
    """

    changes: Changes = field(default="nothing", validator=OneOf(*get_args(Changes)))
    reads_weights: bool = False

    @property
    def abilities(self) -> tuple[str, ...]:
        return ("changes nothing" if self.changes == "nothing" else f"may change the run's {self.changes}",)


class Companion:
    """A callback's part at one stage, in the process of that stage. Tensors are named "NODE/NAME", as in the weights."""

    def updated(self, updates: int) -> None:
        """Observe an update of the stage, without gradients; `updates` counts the stage's own, from 1."""

    def state(self) -> Mapping[str, Tensor]:
        """Return the tensors to keep in checkpoints, and to hand to the callback at the end of the run."""
        return {}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back the tensors of a checkpoint when a run is resumed: those of this stage's nodes, on the stage's device."""


class Callback(Listener):
    """A callback: override the calls of interest. An exception fails the run, and its message names the callback."""

    def evaluated(self, epoch: int, first: int, outputs: Tensor, targets: Tree) -> None:
        """Observe a batch of the evaluation after an epoch.

        Args:
            epoch: counted from 1.
            first: position of the batch's first sample in the evaluation, which reads the validation data in order or, if the run has
                none, the test data.
            outputs: of the head [n, ...], without a graph; not to be changed.
            targets: [n, ...]; several targets in the tuple or dictionary that the data set has them in.
        """

    def evaluated_weights(self, epoch: int, weights: Mapping[str, Tensor]) -> None:
        """Observe all weights after the evaluation after an epoch; called only if the declaration has `reads_weights`.

        `petra_graph.load(run.directory, weights=weights)` is the network with them, where `run` is what `started` was given.

        Args:
            epoch: counted from 1.
            weights: parameters and running statistics by their names in `weights.safetensors`, of all stages and on the CPU; not to
                be changed or kept, since the training continues in the same memory.
        """

    def stops(self) -> str:
        """Return why the training is to end now, or "" to continue; called between two epochs, if `changes` is "length"."""
        return ""

    def at_stage(self, parameters: Mapping[str, Tensor]) -> Companion | None:
        """Return the companion of a stage, or None where the callback needs no companion there.

        Written as `at_stage(self, parameters, stage)`, it is given the stage's `StageFacts`, too: its number, its delay, and how many
        updates it makes in an epoch.

        Args:
            parameters: the stage's own, not copies; a shared one under all its names. Read them in `updated`; they are not to be changed
                unless `changes` is "weights".
        """
        return None

    def ended(self, weights: Mapping[str, Tensor], kept: Mapping[str, Tensor]) -> Mapping[str, Mapping[str, Tensor]]:
        """Return weights to write into the run's directory next to the run's own, by the names of their files.

        Args:
            weights: all parameters and running statistics of a run that is done, or interrupted.
            kept: the tensors of all companions.
        """
        return {}

    def state(self) -> Any:
        """Return what a checkpoint must keep, as JSON; None: nothing."""
        return None

    def restore(self, state: Any) -> None:
        """Take back the state of a checkpoint, after `started`; not called where the checkpoint has no state of this callback."""


def asked_at_stage(callback: Callback, *given: Any) -> tuple[Any, ...]:
    """Return which of a stage's parameters and facts a callback's `at_stage` asks for: the first alone, or both."""
    return given if asks_for_stage(callback.at_stage, 1) else given[:1]


def _declared(callback: Any, _: str) -> Mapping[str, Any]:
    stated = ("changes", "reads_weights")
    return {field: getattr(callback, field) for field in stated if hasattr(callback, field)}


CALLBACK = PluginKind(
    noun="callback",
    group="petra_graph.callbacks",
    table="callback",
    several=True,
    declaration=CallbackDeclaration,
    form=Form(
        fits=lambda value: isinstance(value, type) and issubclass(value, Callback) and value is not Callback,
        otherwise="is not a subclass of petra_graph.plugins.Callback, which is built as cls(options)",
        declared=_declared,
    ),
)
