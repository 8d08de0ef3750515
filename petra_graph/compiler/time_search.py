"""The choice by the time model: the cut whose own tick is the smallest, and how good it is, in the plan's seconds.

The solver's table adds up work and messages; the time model knows waits, latencies, depths and windows too. No cut's tick
is below its busiest device's work, so a cut whose work is more than the best tick needs no look. Where the time model has
looked at every other cut, or the tick is a lower bound of all, the best is optimal, and only then called so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil

from attrs import define, evolve, field

from petra_graph.compiler.cut_bound import CutBound
from petra_graph.compiler.cut_search import CutSearch, Found
from petra_graph.compiler.cuts import Account, Cut, CutSpace, Hosts
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.compiler.proposals import fits
from petra_graph.compiler.simulator.steady_state import tick
from petra_graph.program.placement import Partition, Placement
from petra_graph.program.stage_program import StageProgram
from petra_graph.units import noun

_EFFORT = 3_000
"""About that many operations of stages in all cuts that are compared, a fraction of a second."""
_TOO_MUCH = 10_000
"""A cut that takes more to time is not timed: a thousand stages that share devices."""
_UNTIMED = "by work and messages alone; there are too many stages on shared devices to time other cuts"
_MEMORY = 3
"""The effort of the memory model for each node."""


@define(kw_only=True)
class Seconds:
    """The tick of a cut that keeps the memory limits."""

    inputs: PlannerInputs
    cut_bound: CutBound
    order_bounds: Mapping[Hosts, float]
    """What no tick on an order of devices is below, where that is known."""
    placed: Callable[[Partition], Placement]
    """Resolves the schedule; raises SpecError where the listed depths do not fit."""
    left: float = _EFFORT
    equal: float = 1e-9
    """Seconds are sums of rounded numbers."""
    exact: bool = field(init=False, default=True)
    """Whether no tick was a mean."""

    @property
    def accounts(self) -> Sequence[Account]:
        return self.cut_bound.accounts

    def bound(self, cut: Cut) -> float:
        return self.cut_bound.tick(cut)

    def order_bound(self, order: Hosts) -> float:
        return self.order_bounds.get(order, 0.0)

    def below(self, cut: Cut, limit: float) -> Found | None:
        placement = self.placed(self.inputs.hosted(cut))
        found = self.timed(cut, placement, self.inputs.placed(placement))
        if found.value >= limit:
            return None
        if any(self.inputs.limits):
            self.left -= _MEMORY * len(self.inputs.graph.order)
        return found if fits(self.inputs, placement) else None

    def timed(self, cut: Cut, placement: Placement, programs: Sequence[StageProgram]) -> Found:
        found = tick(self.inputs.pipeline(programs))
        self.left -= self.effort(programs)
        self.exact &= found.exact
        return Found(cut=cut, placement=placement, value=found.seconds)

    def effort(self, programs: Sequence[StageProgram], *, resolved: bool = False) -> float:
        """Return the effort of timing a cut, with finding its depths unless they are `resolved`."""
        stages, window = len(programs), self.inputs.accumulation
        shared = stages > len(self.inputs.devices)
        operations = 2 * (max(program.depth for program in programs) + 4 * window) if shared else 1 + window / 4
        if self.inputs.schedule == "auto" and not resolved:
            operations *= 5 if shared else 3
        return 2 + len(self.inputs.graph.order) / 8 + stages * operations


def fastest(measure: Seconds, space: CutSpace, bound: float, starts: Sequence[Placement]) -> Placement:
    """Return the fastest placement that was found, with its guarantee.

    Args:
        measure: of the ticks.
        space: the cuts.
        bound: seconds that no tick is below.
        starts: placements that keep the memory limits, one at least.

    Raises:
        Deadlock: a start would wait for ever.
    """
    inputs = measure.inputs
    search = CutSearch(space=space, measure=measure, enough=bound * (1 + measure.equal))
    for start in starts:
        programs = inputs.placed(start)
        if measure.effort(programs, resolved=True) > _TOO_MUCH:
            return evolve(start, guarantee=_UNTIMED)
        cut = inputs.cut(start)
        search.offer(measure.timed(cut, start, programs))
        if space.stages < len(space.kinds):
            search.consider(measure.cut_bound.on_other_devices(cut, space.kinds))
    search.run()
    assert search.best is not None, "there is a start"
    guarantee = _guarantee(search, measure, max(bound, search.bound))
    return evolve(search.best.placement, devices=inputs.devices, guarantee=guarantee)


def _guarantee(search: CutSearch, measure: Seconds, bound: float) -> str:
    """Return how good the best is, for people; each word is proven."""
    assert search.best is not None
    space = search.space
    kept = " that keeps the memory limits" if any(measure.inputs.limits) else ""
    if search.satisfied or (search.complete and measure.exact):
        return f"optimal: no {space.noun}{kept} has a smaller tick{space.terms}"
    compared = f"the smallest tick found, with {search.measured} {noun(search.measured, space.noun)} timed"
    if not bound:
        return compared
    gap = ceil(1e3 * (search.best.value / bound - 1)) / 1e3
    return f"{compared}{space.terms}, within {gap:.1%} of a lower bound of all"
