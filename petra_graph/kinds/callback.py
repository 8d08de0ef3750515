"""What a callback is: a listener of the run's progress that may also stop it early, and keep tensors with the stages.

    in the process that leads      started, trained, warned, evaluating, evaluated, evaluated_weights, epoch_ended, stops, ended,
                                   stopped
    in the process of each stage   at_stage, once; the companion that it returns sees every update of that stage

The process that leads hosts the head of the first replica. Callbacks are called in the order in which the specification lists
them, after the loggers have the values. A callback is built in every process, so that its companions are where the stages are.

A declaration says what its callback may change: "nothing", so that the run's results are the same bits as without it; "length", so that
`stops` is asked; or "weights", so that its companions may write to the parameters. What a callback returns from `state` is in
every checkpoint, with the tensors of its companions, and is given to `restore` when the run is resumed.
"""

from __future__ import annotations

import inspect
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from attrs import define, field, frozen

from petra_graph.errors import PluginError, shown
from petra_graph.kinds.broken_promise import BrokenPromise
from petra_graph.kinds.declaration import Declaration, described, expect_among
from petra_graph.kinds.declaration_promises import DECLARATION
from petra_graph.kinds.expected_calls import call_faults, calls_of, public_methods
from petra_graph.kinds.generators import moved_since, states
from petra_graph.kinds.listener import EpochEnded, Listener, Started
from petra_graph.kinds.plugin import Plugin
from petra_graph.kinds.plugin_kind import Form, Part, PluginKind, Promise, takes
from petra_graph.kinds.plugin_trial import PluginTrial
from petra_graph.kinds.tensor_trees import Tree
from petra_graph.units import listed

if TYPE_CHECKING:
    from torch import Tensor

Changes = Literal["nothing", "length", "weights"]
_EPOCHS, _MICRO_BATCHES, _SAMPLES = 2, 4, 6


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
            first: position of the batch's first sample in the evaluation, which reads the test data in order.
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
    yield from call_faults(built, _CALLS)
    if type(built).stops is not Callback.stops and declaration.changes != "length":
        yield f'it defines `stops`, which is never asked: its declaration says changes = "{declaration.changes}", not "length"'
    if type(built).evaluated_weights is not Callback.evaluated_weights and not declaration.reads_weights:
        yield "it defines `evaluated_weights`, which is never called: its declaration says reads_weights = False, not True"
    if type(built).state is not Callback.state and type(built).restore is Callback.restore:
        yield "it defines `state` and no `restore`, so a resumed run loses what its checkpoint keeps"


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


@define(eq=False)
class ReadOnly:
    """Tensors of stages that a callback of a run may read: where it writes to one, the call says so.

    A write moves a tensor's version, which every call compares. One through `.data` does not, so that the first call of each
    method compares the values, too.
    """

    plugin: Plugin
    tensors: Mapping[str, Tensor]
    """By their names in the file of weights."""
    _seen: set[str] = field(factory=set, init=False)
    """The methods that have been called."""

    @contextmanager
    def during(self, method: str, given: Mapping[str, Tensor]) -> Iterator[None]:
        """Call a method, with tensors that are `given` to it alone.

        Raises:
            PluginError: it wrote to a tensor.
        """
        tensors, values = {**self.tensors, **given}, method not in self._seen
        self._seen.add(method)
        before = [_mark(tensor, values=values) for tensor in tensors.values()]
        yield
        pairs = zip(tensors.items(), before, strict=True)
        written = [shown(name) for (name, tensor), mark in pairs if _mark(tensor, values=values) != mark]
        if written:
            declared = cast(CallbackDeclaration, self.plugin.declaration).changes
            found = f'its {method} wrote to {listed(written)}, and its declaration says changes = "{declared}"'
            raise PluginError(f"{self.plugin.owned} breaks a promise (changes): {found}", _COPY)


_COPY = 'copy what is to be changed, as in parameter.detach().clone(); a companion may write where changes = "weights"'


def _mark(tensor: Tensor, *, values: bool) -> tuple[int | None, ...]:
    """Return what tells whether a tensor, or its gradient, has been written to."""
    import torch

    gradient = tensor.grad if tensor.is_leaf else None
    versions = tensor._version, None if gradient is None else gradient._version  # noqa: SLF001  torch has no public name
    if not values:
        return tensor.data_ptr(), *versions
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)  # an update may be under way
    words = tensor.detach().reshape(-1).view(getattr(torch, _WORDS[tensor.itemsize]))
    return tensor.data_ptr(), *versions, int(words.sum(dtype=torch.int64))


_WORDS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64", 16: "int64"}
"""Integers of a tensor's bits, by the bytes of an element."""

_ELSEWHERE: Mapping[str, str] = {
    "setup": "started",
    "on_fit_start": "started",
    "on_train_start": "started",
    "on_train_begin": "started",
    "on_batch_end": "trained",
    "on_step_end": "trained",
    "on_train_batch_end": "trained",
    "on_test_begin": "evaluating",
    "on_test_start": "evaluating",
    "on_validation_start": "evaluating",
    "on_validation_epoch_start": "evaluating",
    "on_test_batch_end": "evaluated",
    "on_validation_batch_end": "evaluated",
    "on_evaluate": "epoch_ended",
    "on_epoch_end": "epoch_ended",
    "on_test_end": "epoch_ended",
    "on_train_epoch_end": "epoch_ended",
    "on_validation_end": "epoch_ended",
    "on_validation_epoch_end": "epoch_ended",
    "on_fit_end": "ended",
    "on_train_end": "ended",
    "teardown": "stopped",
    "on_exception": "stopped",
    "state_dict": "state",
    "on_save_checkpoint": "state",
    "load_state_dict": "restore",
    "on_load_checkpoint": "restore",
}
"""Method names of Lightning, Keras and transformers, each with the name that its author will have meant."""
_ALIKE = 0.8


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
        meant = _ELSEWHERE.get(name) or next(iter(get_close_matches(name, known, 1, _ALIKE)), "")
        if (meant and meant not in functions) or name.startswith("on_"):
            yield name, meant


@frozen(kw_only=True)
class CallbackTrial(PluginTrial):
    """A callback with options."""

    @staticmethod
    def of_kind() -> PluginKind:
        return CALLBACK

    @contextmanager
    def rehearsal(self) -> Iterator[_Rehearsal]:
        """Rehearse a run with a new callback, in a directory that is removed afterwards."""
        with tempfile.TemporaryDirectory() as folder:
            yield _Rehearsal(callback=self.build(self.options), directory=Path(folder), parameters=_parameters())


@frozen(kw_only=True, eq=False)
class _Rehearsal:
    callback: Callback
    directory: Path
    parameters: Mapping[str, Tensor]

    def begin(self) -> Companion | None:
        """Begin as a run does, and return the companion."""
        companion = self.callback.at_stage(self.parameters)
        self.callback.started(
            Started(
                name="rehearsal",
                directory=self.directory,
                epochs=_EPOCHS,
                micro_batches=_MICRO_BATCHES,
                batch=2,
                method="petra",
                schedule="1f1b",
                accumulation=1,
                stages=2,
                parameters=sum(parameter.numel() for parameter in self.parameters.values()),
            )
        )
        return companion

    def epoch(self, epoch: int, companion: Companion | None, *, trains: bool = True) -> tuple[Tensor, Tensor]:
        """Make an epoch's calls, and return the outputs and targets that the callback has been given."""
        import torch

        for number in range(1, _MICRO_BATCHES + 1):
            if trains:
                self._update()
            if companion is not None:
                with torch.no_grad():
                    companion.updated((epoch - 1) * _MICRO_BATCHES + number)
            self.callback.trained(epoch, number, {"loss": 1.0 / number})
        outputs = torch.arange(3.0 * _SAMPLES).reshape(_SAMPLES, 3)
        targets = torch.arange(_SAMPLES) % 3
        self.callback.evaluating(epoch)
        for first in range(0, _SAMPLES, 4):
            rows = slice(first, first + 4)
            self.callback.evaluated(epoch, first, outputs[rows], targets[rows])
        means = {"loss": 1.0 / epoch, "top1": 0.5, "top5": 0.9}
        report = EpochEnded(epoch=epoch, train=means, test=means, samples_per_second=100.0, learning_rate=0.1)
        self.callback.epoch_ended(report)
        return outputs, targets

    def end(self, companion: Companion | None) -> None:
        """End as a run does."""
        kept = {} if companion is None else dict(companion.state())
        self.callback.ended({name: value.detach() for name, value in self.parameters.items()}, kept)
        self.callback.stopped()

    def _update(self) -> None:
        import torch

        with torch.no_grad():
            for parameter in self.parameters.values():
                parameter.mul_(0.5)


def check_calls(trial: CallbackTrial) -> None:
    """A whole run's calls come back, and what the callback returns is of its type: text, tensors by name."""
    with trial.rehearsal() as run:
        for name, meant in misnamed(run.callback):
            remedy = (
                f"call it `{meant}`" if meant else f"a callback's methods are {', '.join(public_methods(Callback))}"
            )
            found = f"it defines `{name}`, which no run calls"
            raise BrokenPromise("calls", found, f"{remedy}; a method for its own use begins with an underscore")
        companion: Any = run.begin()
        if companion is not None and not isinstance(companion, Companion):
            found = f"at_stage returned {type(companion).__name__}"
            raise BrokenPromise("calls", found, "return a Companion, or None")
        for epoch in range(1, _EPOCHS + 1):
            run.epoch(epoch, companion)
            if fault := stops_fault(run.callback.stops()):
                raise BrokenPromise("calls", fault, 'return the reason, or ""')
        run.end(companion)


def check_changes(trial: CallbackTrial) -> None:
    """It changes no more of a run than its declaration says: `stops` needs "length", a write to parameters "weights"."""
    import torch

    changes = trial.declaration.changes
    with trial.rehearsal() as run:
        before = states()
        companion = run.begin()
        values = {name: parameter.detach().clone() for name, parameter in run.parameters.items()}
        outputs, targets = run.epoch(1, companion, trains=False)
        run.end(companion)
        written = [name for name, value in values.items() if not torch.equal(value, run.parameters[name])]
        if written and changes != "weights":
            found = f'it wrote to parameters: its declaration says changes = "{changes}"'
            raise BrokenPromise("changes", found, 'declare changes = "weights", or copy them first')
        if outputs.tolist() != torch.arange(3.0 * _SAMPLES).reshape(_SAMPLES, 3).tolist() or targets.sum() != _SAMPLES:
            raise BrokenPromise("changes", "it changed outputs or targets of the evaluation", "copy them first")
        moved = moved_since(before)
        if moved:
            found = f"it moved the global generator of {' and '.join(moved)}, so that training is another one"
            raise BrokenPromise("changes", found, "draw with a generator of its own")


def check_callback_state(trial: CallbackTrial) -> None:
    """What `state` returns is JSON; a new callback and companion that are given it go on to the same state."""
    import torch

    remedy = "return from state everything later calls need, as numbers, texts, lists and tables; read it in restore"
    with trial.rehearsal() as run, trial.rehearsal() as resumed:
        companion = run.begin()
        run.epoch(1, companion)
        try:
            saved = json.loads(json.dumps(run.callback.state()))
        except (TypeError, ValueError) as error:
            raise BrokenPromise("state", f"it is not JSON: {error}", remedy) from error
        kept = {} if companion is None else {name: value.clone() for name, value in companion.state().items()}
        with torch.no_grad():
            for name, parameter in resumed.parameters.items():
                parameter.copy_(run.parameters[name])
        again = resumed.begin()
        if saved is not None:
            resumed.callback.restore(saved)
        if again is not None and kept:
            again.restore({name: value.clone() for name, value in kept.items()})
        _expect_same(companion, again, "state", remedy)
        for one, of_one in ((run, companion), (resumed, again)):
            one.epoch(2, of_one)
        _expect_same(companion, again, "state", remedy)
        for one, of_one in ((run, companion), (resumed, again)):
            one.end(of_one)


def _expect_same(one: Companion | None, other: Companion | None, promise: str, remedy: str) -> None:
    import torch

    if one is None or other is None:
        return
    expected, found = one.state(), other.state()
    if set(expected) != set(found) or any(not torch.equal(value, found[name]) for name, value in expected.items()):
        raise BrokenPromise(promise, "a resumed companion has other tensors than one that was not interrupted", remedy)


def _parameters() -> dict[str, Tensor]:
    import torch

    generator = torch.Generator().manual_seed(0)
    shapes = {"node/weight": (3, 2), "node/bias": (3,)}
    return {name: torch.randn(shape, generator=generator).requires_grad_() for name, shape in shapes.items()}


def _fits(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Callback) and value is not Callback and takes(1)(value)


def _declared(callback: Any, _: str) -> Mapping[str, Any]:
    stated = ("changes", "reads_weights")
    return {field: getattr(callback, field) for field in stated if hasattr(callback, field)}


_KIT = "a rehearsal"

CALLBACK = PluginKind(
    noun="callback",
    group="petra_graph.callbacks",
    table="callback",
    several=True,
    declaration=CallbackDeclaration,
    form=Form(
        fits=_fits,
        having="class that is a Callback",
        otherwise="is not a subclass of petra_graph.plugins.Callback that is built as cls(options)",
        hint="subclass petra_graph.plugins.Callback; or name an instance of CallbackDeclaration",
        declared=_declared,
    ),
    promises=(
        DECLARATION,
        Promise(
            "calls",
            check_calls,
            build="the signatures, every companion's, and every reason to stop",
            kit=_KIT,
            foundation=True,
        ),
        Promise("changes", check_changes, build="every call: what it writes to parameters and buffers", kit=_KIT),
        Promise("state", check_callback_state, build="every checkpoint's is JSON", kit=_KIT),
    ),
    trial=CallbackTrial,
    built_faults=_built_faults,
    parts=(
        Part(
            kind="callback",
            summary="an observer of a run, which may end it",
            example="time-limit",
            suffix="callback",
            entry="callback:TimeLimit",
            module=("callback.py", "The callback."),
            options="seconds = 600.0",
        ),
    ),
)
