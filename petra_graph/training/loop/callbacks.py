"""The callbacks of a run: called in their order, each failing under its own name.

Decision: what a callback raises fails the run like any error of a stage, with the usual record, rather than being logged and
passed over: a run without the predictions or the averages that it was started for is not the run that was asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, cast

import torch
from attrs import define, evolve, field, frozen
from torch import Tensor, nn

from petra_graph.errors import Path, Problem, RunFailed, SpecError, shown
from petra_graph.executor.stage_executor import StageExecutor
from petra_graph.kinds.author_code import author_code, remedy
from petra_graph.kinds.callback import (
    Callback,
    CallbackDeclaration,
    Companion,
    asked_at_stage,
    companion_fault,
    stops_fault,
)
from petra_graph.kinds.listener import EpochEnded, Listener, Started
from petra_graph.kinds.plugin import Plugin
from petra_graph.kinds.shared_settings import SET_WITHIN, put_back, settings
from petra_graph.kinds.stage_facts import StageFacts
from petra_graph.kinds.tensor_trees import Tree, named_leaves
from petra_graph.planning.check.checked_spec import ConfiguredPlugin
from petra_graph.training.loop.read_only_tensors import ReadOnly

_STATE = "return None, numbers, texts, lists, and tables with texts as keys; tensors are kept by a companion, in its own `state`"


@frozen(kw_only=True)
class NamedCallback:
    """A callback that was built, of the plugin that the specification names."""

    plugin: Plugin
    callback: Callback
    read_only: ReadOnly | None = None
    """The tensors of this process's stages, where it may write to none; None: nothing is watched."""

    @property
    def name(self) -> str:
        return self.plugin.name

    @property
    def declaration(self) -> CallbackDeclaration:
        return cast(CallbackDeclaration, self.plugin.declaration)

    def call(self, method: str, *arguments: Any, **given: Tensor) -> Any:
        """Call a method of the callback, which may not write to the tensors that are `given` to it, by their names.

        Raises:
            RunFailed: it failed.
            PluginError: it wrote to tensors that it may not change, or left a setting changed that all code shares.
        """
        return self.call_on(self.callback, self.read_only, method, *arguments, **given)

    def call_on(
        self, owner: Callback | Companion, read_only: ReadOnly | None, method: str, *arguments: Any, **given: Tensor
    ) -> Any:
        """Call a method of the callback, or of one of its companions, as `call`; those that it has not written change nothing."""
        function = getattr(owner, method)
        written = getattr(function, "__module__", "") not in {Callback.__module__, Listener.__module__}
        if not written or self.plugin.is_first_party:
            with author_code(f'callback "{self.name}" failed', error=RunFailed):
                return function(*arguments)
        watched = nullcontext() if read_only is None else read_only.during(method, given)
        before = settings()
        with watched, author_code(f'callback "{self.name}" failed', error=RunFailed):
            returned = function(*arguments)
        if changed := put_back(before):
            self.plugin.refuse(f"after its {method}, {changed}, for all other code, too", SET_WITHIN)
        return returned

    def state(self) -> Any:
        """Return the callback's state, written as JSON and read again."""
        state = self.call("state")
        try:
            return json.loads(json.dumps(state))
        except (TypeError, ValueError) as error:
            message = f'callback "{self.name}": what {type(self.callback).__name__}.state returns cannot be in a checkpoint: {error}'
            raise RunFailed(message, _STATE) from error

    def at_stage(
        self, parameters: Mapping[str, Tensor], stage: StageFacts, read_only: ReadOnly | None
    ) -> Companion | None:
        """Return the callback's companion at a stage; None: it has none.

        Raises:
            RunFailed: a run cannot call it.
        """
        companion: Any = self.call("at_stage", *asked_at_stage(self.callback, parameters, stage))
        if companion is None:
            return None
        if fault := companion_fault(companion):
            raise RunFailed(f'callback "{self.name}" is broken: {fault}', remedy(self.plugin.distribution))
        return _Guarded(self, companion, read_only)


def build_callbacks(configured: Sequence[ConfiguredPlugin], evaluated: str) -> tuple[NamedCallback, ...]:
    """Build the callbacks of a run whose evaluations read the split `evaluated`.

    Raises:
        SpecError: one refuses its options, or has an option `metric` of the split that no evaluation reads.
        PluginError: its code failed, or it breaks the contract.
    """
    metrics = [(getattr(one.options, "metric", None), (*one.path, "metric")) for one in configured]
    problems = [problem for metric, path in metrics for problem in split_problems(metric, path, evaluated)]
    if problems:
        raise SpecError(problems)
    return tuple(NamedCallback(plugin=one.plugin, callback=one.build()) for one in configured)


def split_problems(metric: object, path: Path, evaluated: str) -> list[Problem]:
    """A metric is of the split that no evaluation after an epoch reads."""
    other, way_out = ("validation", ", or set data.validation") if evaluated == "test" else ("test", "")
    if not str(metric).startswith(f"{other}/"):
        return []
    message = f"{path[-1]} = {shown(metric)}, and the evaluations after epochs read the {evaluated} data"
    hint = f"write {shown(str(metric).replace(other, evaluated, 1))}{way_out}"
    return [Problem(message=message, hint=hint, path=path)]


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
            one.call("started", run)
            if one.name in self.restored:
                one.call("restore", self.restored[one.name])

    def trained(self, epoch: int, micro_batches: int, means: Mapping[str, float]) -> None:
        self._each("trained", epoch, micro_batches, means)

    def warned(self, text: str) -> None:
        self._each("warned", text)

    def evaluating(self, epoch: int) -> None:
        self._seen = 0
        self._each("evaluating", epoch)

    def evaluated(self, epoch: int, outputs: Tensor, targets: Tree) -> None:
        first = self._seen
        self._seen += len(outputs)
        given = {f"targets{at}": one for at, one in named_leaves(targets)}
        self._each("evaluated", epoch, first, outputs, targets, outputs=outputs, **given)

    def evaluated_weights(self, epoch: int, weights: Mapping[str, Tensor]) -> None:
        for one in self._led:
            if one.declaration.reads_weights:
                one.call("evaluated_weights", epoch, weights, **weights)

    def epoch_ended(self, report: EpochEnded) -> None:
        self._each("epoch_ended", report)

    def testing(self, weights: str) -> None:
        self._each("testing", weights)

    def stopped(self) -> None:
        self._each("stopped")

    def stops(self) -> str:
        """Return why the training is to end now; "" where it continues.

        Raises:
            PluginError: a callback has returned something else.
        """
        for one in self._led:
            if one.declaration.changes == "length":
                reason: Any = one.call("stops")
                one.plugin.refuse(stops_fault(reason))
                if reason:
                    return f"{one.name}: {reason}"
        return ""

    def ended(self, weights: Mapping[str, Tensor], kept: Mapping[str, Tensor]) -> Mapping[str, Mapping[str, Tensor]]:
        """Return more weights to write, by file; `kept` has the tensors of all companions, under the names of their callbacks."""
        files: dict[str, Mapping[str, Tensor]] = {}
        for one in self._led:
            own = {name.removeprefix(f"{one.name}/"): kept[name] for name in kept if name.startswith(f"{one.name}/")}
            files |= one.call("ended", weights, own, **weights)
        return files

    def states(self) -> dict[str, Any]:
        states = {one.name: one.state() for one in self._led}
        return {name: state for name, state in states.items() if state is not None}

    def _each(self, method: str, *arguments: Any, **given: Tensor) -> None:
        for one in self._led:
            one.call(method, *arguments, **given)

    @property
    def _led(self) -> Sequence[NamedCallback]:
        return self.callbacks if self.leads else ()


def attach_to_stages(
    callbacks: Sequence[NamedCallback],
    executors: Sequence[StageExecutor],
    stages: Sequence[StageFacts],
) -> tuple[NamedCallback, ...]:
    """Give the stages their companions, and return the callbacks, watched where they may not write to the stages' tensors.

    Those of the first party are not watched, since their own tests hold them to it.
    """
    parameters, tensors = {}, {}
    for executor in executors:
        at, modules = executor.program.index, executor.modules.items()
        parameters[at] = _named(modules, nn.Module.named_parameters)
        tensors[at] = {**parameters[at], **_named(modules, nn.Module.named_buffers)}
    every = {name: tensor for of_stage in tensors.values() for name, tensor in of_stage.items()}
    attached = []
    for one in callbacks:
        watches = one.declaration.changes != "weights" and not one.plugin.is_first_party
        attached.append(evolve(one, read_only=ReadOnly(one.plugin, every) if watches else None))
        for executor in executors:
            at = executor.program.index
            read_only = ReadOnly(one.plugin, tensors[at]) if watches else None
            companion = attached[-1].at_stage(parameters[at], stages[at - 1], read_only)
            if companion is not None:
                executor.companions[one.name] = companion
    return tuple(attached)


def _named(modules: Iterable[tuple[str, nn.Module]], tensors_of: Callable[..., Any]) -> dict[str, Tensor]:
    """Return tensors by their names in the file of weights, a shared one under all its names."""
    return {
        f"{node}/{name}": one for node, module in modules for name, one in tensors_of(module, remove_duplicate=False)
    }


@define
class _Guarded(Companion):
    """A companion whose errors name its callback."""

    _owner: NamedCallback
    _companion: Companion
    _read_only: ReadOnly | None

    @torch.no_grad()
    def updated(self, updates: int) -> None:
        self._owner.call_on(self._companion, self._read_only, "updated", updates)

    def state(self) -> Mapping[str, Tensor]:
        found: Mapping[str, Tensor] = self._owner.call_on(self._companion, self._read_only, "state")
        return found

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self._owner.call_on(self._companion, self._read_only, "restore", tensors)


def companion_tensors(executors: Sequence[StageExecutor]) -> dict[str, Tensor]:
    """Return the tensors of all companions of this process's stages on the CPU, with their callbacks' names before theirs."""
    return {
        f"{name}/{key}": tensor.detach().cpu().contiguous()
        for executor in executors
        for name, companion in executor.companions.items()
        for key, tensor in companion.state().items()
    }
