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

import inspect
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from attrs import frozen

from petra_graph.kinds.declaration import Declaration, described, expect_among
from petra_graph.kinds.expected_calls import ExpectedCall, call_faults, calls_of, public_methods
from petra_graph.kinds.listener import Listener
from petra_graph.kinds.plugin import Plugin
from petra_graph.kinds.plugin_kind import Form, PluginKind, asks_for_stage, takes
from petra_graph.kinds.tensor_trees import Tree

if TYPE_CHECKING:
    from torch import Tensor

Changes = Literal["nothing", "length", "weights"]


@frozen(kw_only=True)
class CallbackDeclaration(Declaration):
    """A callback; `build` names a function (options) -> Callback.

    Attributes:
        changes: the most that it may change of a run: nothing that the run computes, its number of epochs, or its weights.
        reads_weights: whether `evaluated_weights` is to be called; the stages of other processes then send theirs.
    """

    changes: Changes = "nothing"
    reads_weights: bool = False

    def faults(self) -> Iterator[str]:
        yield from expect_among("changes", self.changes, get_args(Changes))
        yield from expect_among("reads_weights", self.reads_weights, (True, False))

    @property
    def abilities(self) -> tuple[str, ...]:
        return ("changes nothing" if self.changes == "nothing" else f"may change the run's {self.changes}",)

    def record(self) -> dict[str, Any]:
        return {"changes": self.changes}


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


_CALLS = calls_of(Callback, public_methods(Callback))
_OF_COMPANION = calls_of(Companion, public_methods(Companion))


def _built_faults(plugin: Plugin, _arguments: Sequence[Any], built: Any) -> Iterator[str]:
    declaration = cast(CallbackDeclaration, plugin.declaration)
    if not isinstance(built, Callback):
        yield f"its build returns {described(built)}, not a Callback"
        return
    of_stage = ExpectedCall("at_stage", asked_at_stage(built, "parameters", "stage"))
    yield from call_faults(built, [of_stage if one.method == "at_stage" else one for one in _CALLS])
    if type(built).stops is not Callback.stops and declaration.changes != "length":
        yield f'it defines `stops`, which is never asked: its declaration says changes = "{declaration.changes}", not "length"'
    if type(built).evaluated_weights is not Callback.evaluated_weights and not declaration.reads_weights:
        yield "it defines `evaluated_weights`, which is never called: its declaration says reads_weights = False, not True"
    if type(built).state is not Callback.state and type(built).restore is Callback.restore:
        yield "it defines `state` and no `restore`, so a resumed run loses what its checkpoint keeps"


def asked_at_stage(callback: Callback, *given: Any) -> tuple[Any, ...]:
    """Return which of a stage's parameters and facts a callback's `at_stage` asks for: the first alone, or both."""
    return given if asks_for_stage(callback.at_stage, 1) else given[:1]


def companion_fault(companion: object) -> str:
    """Return why a run cannot call what `at_stage` returned as a companion; "" where it can."""
    if not isinstance(companion, Companion):
        return f"its at_stage returns {described(companion)}, not a Companion or None"
    return next(call_faults(companion, _OF_COMPANION), "")


def stops_fault(reason: object) -> str:
    """Return why what `stops` returned is not a reason to stop; "" where it is one, or the training is to continue."""
    if isinstance(reason, str):
        return ""
    said = repr(reason) if isinstance(reason, bool) else described(reason)
    return f'its stops returns {said}, not a text: the reason to stop, or "" to continue'


_ALIKE = 0.8
"""How similar a method that nothing calls is to the one that is likely meant."""


def misnamed(callback: Callback) -> Iterator[tuple[str, str]]:
    """Yield methods that nothing calls, each with the name that is likely meant, or "".

    A method that the class's own code names is a helper, not a mistake.
    """
    known = public_methods(Callback)
    written = [cls for cls in type(callback).__mro__ if cls not in Callback.__mro__]
    functions = {name: value for cls in written for name, value in vars(cls).items() if inspect.isfunction(value)}
    used = {name for function in functions.values() for name in function.__code__.co_names}
    for name in functions:
        if name.startswith("_") or name in known or name in used:
            continue
        meant = next(iter(get_close_matches(name, known, 1, _ALIKE)), "")
        if (meant and meant not in functions) or name.startswith("on_"):
            yield name, meant


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
        fits=lambda value: (
            isinstance(value, type) and issubclass(value, Callback) and value is not Callback and takes(1)(value)
        ),
        having="class that is a Callback",
        otherwise="is not a subclass of petra_graph.plugins.Callback that is built as cls(options)",
        hint="subclass petra_graph.plugins.Callback; or name an instance of CallbackDeclaration",
        declared=_declared,
    ),
    built_faults=_built_faults,
)
