"""A callback is rehearsed: a whole run's calls, with a small network of one stage."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from attrs import field, frozen
from torch import Tensor

from petra_graph.kinds.callback import CALLBACK, Callback, Companion, asked_at_stage, misnamed, stops_fault
from petra_graph.kinds.expected_calls import public_methods
from petra_graph.kinds.generators import seeded
from petra_graph.kinds.listener import EpochEnded, Started
from petra_graph.kinds.plugin_kind import PluginKind
from petra_graph.kinds.stage_facts import StageFacts
from petra_graph_conformance.broken_promise import BrokenPromise
from petra_graph_conformance.declaration_promises import DECLARATION, PACKAGE
from petra_graph_conformance.moved_generators import moved_since, states
from petra_graph_conformance.plugin_trial import PluginTrial
from petra_graph_conformance.promise import KindChecks, Promise

_EPOCHS, _MICRO_BATCHES, _SAMPLES = 3, 4, 6
_STAGE = StageFacts(index=2, stages=2, depth=1, accumulation=1, replicas=1, flush="drain", micro_batches=_MICRO_BATCHES)


def _parameters() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"node/weight": (3, 2), "node/bias": (3,)}
    return {name: torch.randn(shape, generator=generator).requires_grad_() for name, shape in shapes.items()}


@frozen(kw_only=True)
class CallbackTrial(PluginTrial):
    """A callback with options.

    Attributes:
        plugin: the callback.
        options: an instance of its own options class.
        parameters: of the rehearsal's stage, by their names; they are copied.
        outputs: of its evaluations, and their targets; copied as well.
        targets: of these outputs.
    """

    parameters: Mapping[str, Tensor] = field(factory=_parameters, repr=False, eq=False)
    outputs: Tensor = field(factory=lambda: torch.arange(3.0 * _SAMPLES).reshape(_SAMPLES, 3), repr=False, eq=False)
    targets: Tensor = field(factory=lambda: torch.arange(_SAMPLES) % 3, repr=False, eq=False)

    @staticmethod
    def of_kind() -> PluginKind:
        return CALLBACK

    @contextmanager
    def rehearsal(self) -> Iterator[_Rehearsal]:
        """Rehearse a run with a new callback, in a directory that is removed afterwards."""
        with tempfile.TemporaryDirectory() as folder:
            own = {name: one.detach().clone().requires_grad_() for name, one in self.parameters.items()}
            yield _Rehearsal(callback=self.build(self.options), directory=Path(folder), parameters=own, trial=self)


@frozen(kw_only=True, eq=False)
class _Rehearsal:
    callback: Callback
    directory: Path
    parameters: Mapping[str, Tensor]
    trial: CallbackTrial

    def begin(self) -> Companion | None:
        """Begin as a run does, and return the companion."""
        at_stage: Any = self.callback.at_stage
        companion: Companion | None = at_stage(*asked_at_stage(self.callback, self.parameters, _STAGE))
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
        for number in range(1, _MICRO_BATCHES + 1):
            if trains:
                self._update()
            if companion is not None:
                with torch.no_grad():
                    companion.updated((epoch - 1) * _MICRO_BATCHES + number)
            self.callback.trained(epoch, number, {"loss": 1.0 / number})
        outputs, targets = self.trial.outputs.clone(), self.trial.targets.clone()
        self.callback.evaluating(epoch)
        for first in range(0, len(outputs), 4):
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


_SEED = 8_191_771
"""No author's: a callback that seeds a generator as it already is would move nothing."""


def check_changes(trial: CallbackTrial) -> None:
    """It changes no more of a run than its declaration says: `stops` needs "length", a write to parameters "weights".

    Parameters are compared after each epoch, value by value, so that a write through `data` or numpy is noticed, and one that comes
    after the first epoch.
    """
    changes = trial.declaration.changes
    with seeded(_SEED), trial.rehearsal() as run:
        generators = states()
        companion = run.begin()
        values = {name: parameter.detach().clone() for name, parameter in run.parameters.items()}
        for epoch in range(1, _EPOCHS + 1):
            outputs, targets = run.epoch(epoch, companion, trains=False)
            written = [name for name, value in values.items() if not torch.equal(value, run.parameters[name])]
            if written and changes != "weights":
                found = f'it wrote to parameters in epoch {epoch}: its declaration says changes = "{changes}"'
                raise BrokenPromise("changes", found, 'declare changes = "weights", or copy them first')
            if not all(parameter.requires_grad for parameter in run.parameters.values()):
                found = "it switched off `requires_grad` of parameters, so that they are trained no more"
                raise BrokenPromise("changes", found, "leave it as it is; [finetune] freezes parameters")
            if not (torch.equal(outputs, trial.outputs) and torch.equal(targets, trial.targets)):
                raise BrokenPromise("changes", "it changed outputs or targets of the evaluation", "copy them first")
        run.end(companion)
        moved = moved_since(generators)
        if moved:
            found = f"it moved the global generator of {' and '.join(moved)}, so that training is another one"
            raise BrokenPromise("changes", found, "draw with a generator of its own")


def check_callback_state(trial: CallbackTrial) -> None:
    """What `state` returns is JSON; a new callback and companion that are given it go on to the same state."""
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
    if one is None or other is None:
        return
    expected, found = one.state(), other.state()
    if set(expected) != set(found) or any(not torch.equal(value, found[name]) for name, value in expected.items()):
        raise BrokenPromise(promise, "a resumed companion has other tensors than one that was not interrupted", remedy)


CALLBACK_CHECKS = KindChecks(
    kind=CALLBACK,
    promises=(
        DECLARATION,
        PACKAGE,
        Promise("calls", check_calls, run=False, foundation=True),
        Promise("changes", check_changes, run=False),
        Promise("state", check_callback_state, run=False),
    ),
    trial=CallbackTrial,
)
