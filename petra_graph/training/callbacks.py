"""The callbacks of a run: called in their order, each failing with a note of its name.

Decision: what a callback raises fails the run like any error of a stage, with the usual record, rather than being logged and
passed over: a run without the predictions or the averages that it was started for is not the run that was asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from attrs import define, field, frozen
from torch import Tensor

from petra_graph.errors import Path, Problem, RunFailed, SpecError, shown
from petra_graph.executor.stage import StageExecutor
from petra_graph.planning.check_spec import ConfiguredPlugin
from petra_graph.plugins.author_code import noted
from petra_graph.plugins.callback import Callback, Started, asked_at_stage, missing_package
from petra_graph.plugins.contract import Plugin
from petra_graph.plugins.stage_facts import StageFacts
from petra_graph.record.metrics import Metrics

_STATE = "return None, numbers, texts, lists, and tables with texts as keys; tensors are kept by a companion, in its own `state`"


@frozen(kw_only=True)
class NamedCallback:
    """A callback that was built, of the plugin that the specification names."""

    plugin: Plugin
    callback: Callback

    @property
    def name(self) -> str:
        return self.plugin.name

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of the callback; what it raises has a note that names it."""
        with noted(f'callback "{self.name}"'):
            return getattr(self.callback, method)(*arguments, **named)

    def state(self) -> Any:
        """Return the callback's state, written as JSON and read again."""
        state = self.call("state")
        try:
            return json.loads(json.dumps(state))
        except (TypeError, ValueError) as error:
            message = f'callback "{self.name}": what {type(self.callback).__name__}.state returns cannot be in a checkpoint: {error}'
            raise RunFailed(message, _STATE) from error


def build_callbacks(configured: Sequence[ConfiguredPlugin], evaluated: str) -> tuple[NamedCallback, ...]:
    """Build the callbacks of a run whose evaluations read the split `evaluated`.

    Raises:
        SpecError: one refuses its options, or has an option `metric` of the split that no evaluation reads, or its package is not installed.
        PluginError: its code failed, or it breaks the contract.
    """
    problems = list[Problem]()
    for one in configured:
        problems += split_problems(getattr(one.options, "metric", None), (*one.path, "metric"), evaluated)
        if missing := missing_package(one.plugin):
            problems.append(one.locate(missing))
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
class Callbacks:
    """All callbacks of a run, in the process that leads; in other processes, none is called."""

    callbacks: Sequence[NamedCallback] = ()
    metrics: Metrics | None = None
    """The run's recorded values; None in a process that does not lead."""
    restored: Mapping[str, Any] = field(factory=dict)
    """The states of the checkpoint from which the callbacks are restored."""

    @property
    def may_stop(self) -> bool:
        return any(one.callback.changes == "length" for one in self.callbacks)

    @property
    def read_weights(self) -> bool:
        return any(one.callback.reads_weights for one in self.callbacks)

    def each(self, event: str) -> list[Callable[..., Any]]:
        """Return a method of every callback, in their order; what it raises has a note that names its callback."""
        return [partial(one.call, event) for one in self._led]

    def started(self, run: Started) -> None:
        """Begin, or restore the states of a checkpoint; each callback has the values that are recorded from now on."""
        for one in self._led:
            one.call("started", run)
            assert self.metrics is not None, "it leads"
            self.metrics.hand_to(one.call)
            if one.name in self.restored:
                one.call("restore", self.restored[one.name])

    def evaluated_weights(self, epoch: int, weights: Mapping[str, Tensor]) -> None:
        for one in self._led:
            if one.callback.reads_weights:
                one.call("evaluated_weights", epoch, weights)

    def stops(self) -> str:
        """Return why the training is to end now; "" where it continues."""
        for one in self._led:
            if one.callback.changes == "length" and (reason := one.call("stops")):
                return f"{one.name}: {reason}"
        return ""

    def ended(self, weights: Mapping[str, Tensor], kept: Mapping[str, Tensor]) -> Mapping[str, Mapping[str, Tensor]]:
        """Return more weights to write, by file; `kept` has the tensors of all companions, under the names of their callbacks."""
        files: dict[str, Mapping[str, Tensor]] = {}
        for one in self._led:
            own = {name.removeprefix(f"{one.name}/"): kept[name] for name in kept if name.startswith(f"{one.name}/")}
            files |= one.call("ended", weights, own)
        return files

    def states(self) -> dict[str, Any]:
        states = {one.name: one.state() for one in self._led}
        return {name: state for name, state in states.items() if state is not None}

    @property
    def _led(self) -> Sequence[NamedCallback]:
        return self.callbacks if self.metrics is not None else ()


def attach_to_stages(
    callbacks: Sequence[NamedCallback],
    executors: Sequence[StageExecutor],
    stages: Sequence[StageFacts],
) -> None:
    """Give the stages their companions."""
    for executor in executors:
        at = executor.program.index
        parameters = {  # by their names in the file of weights, a shared one under all its names
            f"{node}/{name}": one
            for node, module in executor.modules.items()
            for name, one in module.named_parameters(remove_duplicate=False)
        }
        for one in callbacks:
            companion = one.call("at_stage", *asked_at_stage(one.callback, parameters, stages[at - 1]))
            if companion is not None:
                executor.companions[one.name] = companion


def companion_tensors(executors: Sequence[StageExecutor]) -> dict[str, Tensor]:
    """Return the tensors of all companions of this process's stages on the CPU, with their callbacks' names before theirs."""
    return {
        f"{name}/{key}": tensor.detach().cpu().contiguous()
        for executor in executors
        for name, companion in executor.companions.items()
        for key, tensor in companion.state().items()
    }
