"""The callbacks of a run: called in their order, each failing under its own name.

Decision: what a callback raises fails the run like any error of a stage, with the usual record, rather than being logged and
passed over: a run without the predictions or the averages that it was started for is not the run that was asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller
from typing import Any, TypeVar, cast

import torch
from attrs import define, field, frozen
from torch import Tensor

from petra_graph.errors import RunFailed
from petra_graph.executor.stage_executor import StageExecutor
from petra_graph.kinds.author_code import author_code, remedy
from petra_graph.kinds.callback import Callback, CallbackDeclaration, Companion, companion_fault, misnamed
from petra_graph.kinds.listener import EpochEnded, Listener, Started
from petra_graph.planning.checked_spec import ConfiguredPlugin

T = TypeVar("T")
_STATE = "return None, numbers, texts, lists, and tables with texts as keys; tensors are kept by a companion, in its own `state`"


@frozen(kw_only=True)
class NamedCallback:
    """A callback that was built, with the name that the specification gives it."""

    name: str
    declaration: CallbackDeclaration
    callback: Callback
    remedy: str = ""
    """What to do where its code is wrong."""

    def run(self, action: Callable[[Callback], T]) -> T:
        """Run code with the callback.

        Raises:
            RunFailed: it failed.
        """
        with author_code(f'callback "{self.name}" failed', error=RunFailed):
            return action(self.callback)

    def state(self) -> Any:
        """Return the callback's state, written as JSON and read again."""
        state = self.run(lambda callback: callback.state())
        try:
            return json.loads(json.dumps(state))
        except (TypeError, ValueError) as error:
            message = f'callback "{self.name}": what {type(self.callback).__name__}.state returns cannot be in a checkpoint: {error}'
            raise RunFailed(message, _STATE) from error

    def at_stage(self, parameters: Mapping[str, Tensor]) -> Companion | None:
        """Return the callback's companion at a stage; None: it has none.

        Raises:
            RunFailed: a run cannot call it.
        """
        companion: Any = self.run(lambda callback: callback.at_stage(parameters))
        if companion is None:
            return None
        if fault := companion_fault(companion):
            raise RunFailed(f'callback "{self.name}" is broken: {fault}', self.remedy)
        return _Guarded(self, companion)


def build_callbacks(configured: Sequence[ConfiguredPlugin]) -> tuple[NamedCallback, ...]:
    return tuple(
        NamedCallback(
            name=one.plugin.name,
            declaration=cast(CallbackDeclaration, one.plugin.declaration),
            callback=one.build(),
            remedy=remedy(one.plugin.distribution),
        )
        for one in configured
    )


def uncalled(callbacks: Sequence[NamedCallback]) -> list[str]:
    """Return a warning of each method that no run calls, though its author will have expected a call."""
    return [
        f'callback "{one.name}" defines `{name}`, which no run calls' + (f": call it `{meant}`" if meant else "")
        for one in callbacks
        for name, meant in misnamed(one.callback)
    ]


@define(eq=False)
class Callbacks(Listener):
    """All callbacks of a run, in the process that leads; in other processes, none of their listeners is called."""

    callbacks: Sequence[NamedCallback] = ()
    leads: bool = True
    restored: Mapping[str, Any] = field(factory=dict)
    """The states of the checkpoint from which the callbacks are restored."""
    _seen: int = field(default=0, init=False)
    """Samples of the evaluation under way."""

    @property
    def may_stop(self) -> bool:
        return any(one.declaration.changes == "length" for one in self.callbacks)

    @property
    def read_weights(self) -> bool:
        return any(one.declaration.reads_weights for one in self.callbacks)

    def started(self, run: Started) -> None:
        """Begin, or restore the states of a checkpoint."""
        for one in self._led:
            one.run(lambda callback: callback.started(run))
            if one.name in self.restored:
                one.run(methodcaller("restore", self.restored[one.name]))

    def trained(self, epoch: int, micro_batches: int, means: Mapping[str, float]) -> None:
        self._each(lambda callback: callback.trained(epoch, micro_batches, means))

    def warned(self, text: str) -> None:
        self._each(lambda callback: callback.warned(text))

    def evaluating(self, epoch: int) -> None:
        self._seen = 0
        self._each(lambda callback: callback.evaluating(epoch))

    def evaluated(self, epoch: int, outputs: Tensor, targets: Tensor) -> None:
        first = self._seen
        self._seen += len(targets)
        self._each(lambda callback: callback.evaluated(epoch, first, outputs, targets))

    def evaluated_weights(self, epoch: int, weights: Mapping[str, Tensor]) -> None:
        for one in self._led:
            if one.declaration.reads_weights:
                one.run(lambda callback: callback.evaluated_weights(epoch, weights))

    def epoch_ended(self, report: EpochEnded) -> None:
        self._each(lambda callback: callback.epoch_ended(report))

    def stopped(self) -> None:
        self._each(lambda callback: callback.stopped())

    def stops(self) -> str:
        """Return why the training is to end now; "" where it continues."""
        for one in self._led:
            if one.declaration.changes == "length" and (reason := one.run(lambda callback: callback.stops())):
                return f"{one.name}: {reason}"
        return ""

    def ended(self, weights: Mapping[str, Tensor], kept: Mapping[str, Tensor]) -> Mapping[str, Mapping[str, Tensor]]:
        """Return more weights to write, by file; `kept` has the tensors of all companions, under the names of their callbacks."""
        files: dict[str, Mapping[str, Tensor]] = {}
        for one in self._led:
            own = {name.removeprefix(f"{one.name}/"): kept[name] for name in kept if name.startswith(f"{one.name}/")}
            files |= one.run(methodcaller("ended", weights, own))
        return files

    def states(self) -> dict[str, Any]:
        states = {one.name: one.state() for one in self._led}
        return {name: state for name, state in states.items() if state is not None}

    def _each(self, action: Callable[[Callback], None]) -> None:
        for one in self._led:
            one.run(action)

    @property
    def _led(self) -> Sequence[NamedCallback]:
        return self.callbacks if self.leads else ()


def attach_companions(callbacks: Sequence[NamedCallback], executors: Sequence[StageExecutor]) -> None:
    for executor in executors:
        parameters = {
            f"{node}/{name}": parameter
            for node, module in executor.modules.items()
            for name, parameter in module.named_parameters(remove_duplicate=False)
        }
        for one in callbacks:
            companion = one.at_stage(parameters)
            if companion is not None:
                executor.companions[one.name] = companion


@define
class _Guarded(Companion):
    """A companion whose errors name its callback."""

    _owner: NamedCallback
    _companion: Companion

    @torch.no_grad()
    def updated(self, updates: int) -> None:
        self._owner.run(lambda _: self._companion.updated(updates))

    def state(self) -> Mapping[str, Tensor]:
        return self._owner.run(lambda _: self._companion.state())

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self._owner.run(lambda _: self._companion.restore(tensors))


def kept_by_companions(executors: Sequence[StageExecutor]) -> dict[str, Tensor]:
    """Return the tensors of all companions of this process's stages on the CPU, with their callbacks' names before theirs."""
    return {
        f"{name}/{key}": tensor.detach().cpu().contiguous()
        for executor in executors
        for name, companion in executor.companions.items()
        for key, tensor in companion.state().items()
    }
