"""A learning-rate schedule: a pure, cheap function from an update's number to a finite factor of at least 0."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from numbers import Real
from typing import Any

from attrs import frozen

from petra_graph.kinds.author_code import author_code
from petra_graph.kinds.declaration import Declaration, described
from petra_graph.kinds.expected_calls import ExpectedCall, function_faults
from petra_graph.kinds.plugin import Plugin
from petra_graph.kinds.plugin_kind import PluginKind, called


@frozen(kw_only=True)
class Horizon:
    """The length of a run in updates, for learning-rate schedules.

    Attributes:
        updates: of the whole run; the schedule is asked for u = 0 .. updates - 1.
        updates_per_epoch: of one epoch.
        warmup_updates: at the run's start, over which the rate rises; counted in `updates`.
    """

    updates: int
    updates_per_epoch: int
    warmup_updates: int


@frozen(kw_only=True)
class LrScheduleDeclaration(Declaration):
    """A learning-rate schedule; `build` names a torch-free function (options, Horizon) -> factor(u).

    `factor(u)` multiplies the base learning rate at the stage's update u = 0, 1, ...; warm-up is applied outside. A function
    (options, Horizon, stage) is given the `StageFacts` of a stage, and builds the factor of that stage alone.
    """


def _built_faults(_plugin: Plugin, _arguments: Sequence[Any], built: Any) -> Iterator[str]:
    if not callable(built):
        yield f"its build returns {described(built)}, not a function of the update"
    yield from function_faults(built, ExpectedCall("factor", ("u",)))


def factor_fault(u: int, value: Any) -> str:
    """Return why a value cannot be the factor of the learning rate at update u; "" where it can."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return f"its factor at update {u} is {described(value)}, not a number"
    if not math.isfinite(value) or value < 0:
        return f"its factor at update {u} is {value}, not a finite number of at least 0"
    return ""


@frozen(eq=False)
class _GuardedFactor:
    """A schedule's factors, each of which is a finite number of at least 0."""

    plugin: Plugin
    factor: Callable[[int], float]

    def __call__(self, u: int) -> float:
        with author_code(lambda: f"{self.plugin.owned} failed at update {u}"):
            value = self.factor(u)
        if type(value) is not float or not 0 <= value < math.inf:
            self.plugin.refuse(factor_fault(u, value))
        return float(value)


LR_SCHEDULE = PluginKind(
    noun="learning-rate schedule",
    group="petra_graph.lr_schedules",
    table="lr_schedule",
    declaration=LrScheduleDeclaration,
    form=called(LrScheduleDeclaration, "options, horizon", "factor(u)", stage=True),
    built_faults=_built_faults,
    guard=_GuardedFactor,
)
