"""The callbacks of a run, each called by its name in messages.

Decision: what a callback raises fails the run like any error of a stage, with the usual record, rather than being logged and
passed over: a run without the predictions or the averages that it was started for is not the run that was asked for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from attrs import frozen
from torch import Tensor

from petra_graph.errors import Path, Problem, SpecError, shown
from petra_graph.executor.stage import StageExecutor
from petra_graph.plugins.author_code import noted
from petra_graph.plugins.callback import Callback, asked_at_stage, missing_package
from petra_graph.plugins.contract import Plugin
from petra_graph.plugins.stage_facts import StageFacts


@frozen(kw_only=True)
class NamedCallback:
    name: str
    """Of its plugin."""
    path: Path
    """Of its options in the specification."""
    callback: Callback

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of the callback; what it raises has a note that names it."""
        with noted(f'callback "{self.name}"'):
            return getattr(self.callback, method)(*arguments, **named)

    def state(self) -> Any:
        """Return the callback's state, written as JSON and read again."""
        with noted(f'what `state` of callback "{self.name}" returns, as JSON'):
            return json.loads(json.dumps(self.callback.state()))


def build_callbacks(configured: Sequence[Plugin], evaluated: str) -> tuple[NamedCallback, ...]:
    """Build the callbacks of a run whose evaluations read the split `evaluated`.

    Raises:
        SpecError: one refuses its options, or has an option `metric` of the split that no evaluation reads, or its package is not installed.
        PluginError: its code failed, or it breaks the contract.
    """
    problems = list[Problem]()
    for one in configured:
        problems += split_problems(getattr(one.options, "metric", None), (*one.path, "metric"), evaluated)
        if missing := missing_package(one):
            problems.append(one.locate(missing))
    if problems:
        raise SpecError(problems)
    return tuple(NamedCallback(name=one.name, path=one.path, callback=one.build()) for one in configured)


def split_problems(metric: object, path: Path, evaluated: str) -> list[Problem]:
    """A metric is of the split that no evaluation after an epoch reads."""
    other, way_out = ("validation", ", or set data.validation") if evaluated == "test" else ("test", "")
    if not str(metric).startswith(f"{other}/"):
        return []
    message = f"{path[-1]} = {shown(metric)}, and the evaluations after epochs read the {evaluated} data"
    hint = f"write {shown(str(metric).replace(other, evaluated, 1))}{way_out}"
    return [Problem(message=message, hint=hint, path=path)]


def attach_to_stages(
    callbacks: Sequence[NamedCallback], executors: Sequence[StageExecutor], stages: Sequence[StageFacts]
) -> None:
    """Give the stages their companions."""
    for executor in executors:
        parameters = {  # by their names in the file of weights, a shared one under all its names
            f"{node}/{name}": one
            for node, module in executor.modules.items()
            for name, one in module.named_parameters(remove_duplicate=False)
        }
        for one in callbacks:
            given = asked_at_stage(one.callback, parameters, stages[executor.program.index - 1])
            if (companion := one.call("at_stage", *given)) is not None:
                executor.companions[one.name] = companion


def companion_tensors(executors: Sequence[StageExecutor]) -> dict[str, Tensor]:
    """Return the tensors of all companions of this process's stages on the CPU, with their callbacks' names before theirs."""
    return {
        f"{name}/{key}": tensor.detach().cpu().contiguous()
        for executor in executors
        for name, companion in executor.companions.items()
        for key, tensor in companion.state().items()
    }
