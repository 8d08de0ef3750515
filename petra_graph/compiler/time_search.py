"""The choice by the time model: the cut whose own tick is the smallest, and how good it is, in the plan's seconds.

    solver --cuts--> time model --the fastest--> its neighbours, while they are faster --> all cuts that may be faster

The solver's table adds up work and messages; the time model knows waits, latencies, depths and windows too. No cut's tick
is below its busiest device's work, so a cut whose work is more than the best tick needs no look. Where the time model has
looked at every other cut, or the tick is a lower bound of all, the best is optimal, and only then called so.

Decision: cuts are compared until `_EFFORT` is used up, which is counted, not timed: the same specification gives the same
stages on any machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil, inf

from attrs import define, evolve, field, frozen

from petra_graph.compiler.cut_bound import CutBound
from petra_graph.compiler.cuts import Cut, CutSpace
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.compiler.simulator.steady_state import Tick, tick
from petra_graph.errors import SpecError
from petra_graph.program.placement import Partition, Placement
from petra_graph.program.stage_program import StageProgram
from petra_graph.units import noun

_EFFORT = 3_000
"""About that many operations of stages in all cuts that are compared, a fraction of a second."""
_CLIMB = 0.4
"""The part of it for neighbours."""
_TOO_MUCH = 10_000
"""A cut that takes more to time is not timed: a thousand stages that share devices."""
_UNTIMED = "by work and messages alone; there are too many stages on shared devices to time other cuts"
_MEMORY = 3
"""The effort of the memory model for each node."""
_EQUAL = 1e-9
"""Seconds are sums of rounded numbers: ticks this close count as equal."""


@frozen(kw_only=True)
class TimedPlacement:
    """A placement with its tick by the time model."""

    placement: Placement
    cut: Cut
    tick: Tick

    @property
    def seconds(self) -> float:
        return self.tick.seconds


@define(kw_only=True)
class TimeSearch:
    """The search for the fastest of the cuts into a number of stages, or of the places of given stages."""

    inputs: PlannerInputs
    space: CutSpace
    cut_bound: CutBound
    bound: float
    """No tick is below."""
    placed: Callable[[Partition], Placement]
    """Resolves the schedule; raises SpecError where the listed depths do not fit."""
    fits: Callable[[Placement], bool]
    """Whether the devices' memory suffices; asked where there are limits."""
    best: TimedPlacement | None = field(init=False, default=None)
    proven: bool = field(init=False, default=False)
    """Whether no cut is faster than the best."""
    _seen: set[Cut] = field(init=False, factory=set)
    _inexact: bool = field(init=False, default=False)
    """Whether some tick was a mean."""
    _left: float = field(init=False, default=_EFFORT)
    _next_bound: float = field(init=False, default=0.0)

    def fastest(self, starts: Sequence[Placement]) -> Placement:
        """Return the fastest placement that was found, with its guarantee.

        Args:
            starts: placements that keep the memory limits, one at least.

        Raises:
            Deadlock: a start would wait for ever.
        """
        for start in starts:
            programs = self.inputs.placed(start)
            if self._effort(len(programs), max(program.depth for program in programs), resolved=True) > _TOO_MUCH:
                return evolve(start, guarantee=_UNTIMED)
            self._time(self.inputs.cut(start), start, programs, fits=True)
        self._climb(_EFFORT * (1 - _CLIMB))
        if not self._at_bound():
            self.proven = self._compare_others() and not self._inexact
            self._climb(0)
        assert self.best is not None, "there is a start"
        return evolve(self.best.placement, guarantee=self._guarantee())

    @property
    def _limited(self) -> bool:
        return any(limit is not None for limit in self.inputs.limits)

    def _at_bound(self) -> bool:
        self.proven = self.proven or (self.best is not None and self.best.seconds <= self.bound * (1 + _EQUAL))
        return self.proven

    def _limit(self) -> float:
        """Return the tick that a cut has to undercut."""
        return inf if self.best is None else self.best.seconds * (1 - _EQUAL)

    def _consider(self, cut: Cut) -> bool:
        """Time a cut, and return whether it is the best so far."""
        if cut in self._seen:
            return False
        try:
            placement = self.placed(self.inputs.hosted(cut))
            return self._time(cut, placement, self.inputs.placed(placement))
        except SpecError:  # The listed depths do not fit this cut.
            return False

    def _time(self, cut: Cut, placement: Placement, programs: Sequence[StageProgram], *, fits: bool = False) -> bool:
        """Time a placement, and return whether it is the best so far; `fits` where it is known to keep the limits."""
        self._seen.add(cut)
        found = tick(self.inputs.pipeline(programs))
        self._left -= self._effort(len(programs), max(program.depth for program in programs))
        self._inexact |= not found.exact
        if found.seconds >= self._limit():
            return False
        if self._limited and not fits:
            self._left -= _MEMORY * len(self.inputs.graph.order)
            if not self.fits(placement):
                return False
        self.best = TimedPlacement(placement=placement, cut=cut, tick=found)
        return True

    def _effort(self, stages: int, depth: int, *, resolved: bool = False) -> float:
        """Return the effort of timing a cut, with finding its depths unless they are `resolved`."""
        window = self.inputs.accumulation
        shared = stages > len(self.inputs.devices)
        operations = 2 * (depth + 4 * window) if shared else 1 + window / 4
        if (self.inputs.schedule == "auto" or self.inputs.split_backward) and not resolved:
            operations *= 5 if shared else 3
        return 2 + len(self.inputs.graph.order) / 8 + stages * operations

    def _climb(self, left: float) -> None:
        """Move to a faster neighbour as long as there is one, and effort left to time it."""
        improved = self.best is not None
        while improved and not self._at_bound() and self._left > left:
            improved = False
            for cut in self._promising():
                if self._left <= left:
                    return
                if self._consider(cut):
                    improved = True
                    break

    def _promising(self) -> Iterator[Cut]:
        """Yield the best cut's neighbours that may be faster, the least work first."""
        assert self.best is not None
        yield from self._by_bound(self.space.neighbours(self.best.cut))

    def _by_bound(self, cuts: Iterable[Cut]) -> Iterator[Cut]:
        """Yield the cuts that may be faster than the best at that time, those with the least bounds first."""
        bounds = {cut: self.cut_bound.tick(cut) for cut in cuts if cut not in self._seen}
        for cut in sorted(bounds, key=bounds.__getitem__):
            if bounds[cut] >= self._limit():
                return
            self._next_bound = bounds[cut]
            yield cut

    def _compare_others(self) -> bool:
        """Time the cuts that may be faster, as far as the effort reaches; return whether all of them were timed."""
        cuts = self.space.all_below(self.cut_bound.accounts, self._limit())
        if cuts is None:
            return False
        for cut in self._by_bound(cuts):
            if self._left <= 0:
                self.bound = max(self.bound, self._next_bound)
                return False
            self._consider(cut)
        return True

    def _guarantee(self) -> str:
        """Return how good the best is, for people; each word is proven."""
        assert self.best is not None
        what = "cut" if self.space.fixed is None else "placement"
        kept = " that keeps the memory limits" if self._limited else ""
        if self.proven:
            return f"optimal: no {what}{kept} has a smaller tick{self.space.terms}"
        timed = len(self._seen)
        compared = f"the smallest tick found, with {timed} {noun(timed, what)} timed"
        if not self.bound:
            return compared
        gap = ceil(1e3 * (self.best.seconds / self.bound - 1)) / 1e3
        return f"{compared}{self.space.terms}, within {gap:.1%} of a lower bound of all"
