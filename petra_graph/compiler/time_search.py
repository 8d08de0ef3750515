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
from itertools import islice
from math import ceil, inf

from attrs import define, evolve, field, frozen

from petra_graph.compiler.cut_bound import CutBound
from petra_graph.compiler.cuts import CHOICES, Cut, CutSpace, OutOfSteps, cut_of, device_choices, named
from petra_graph.compiler.listed_stages import partition
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.compiler.simulator.steady_state import Tick, tick
from petra_graph.errors import SpecError
from petra_graph.program.placement import Partition, Placement
from petra_graph.program.stage_program import StageProgram

_EFFORT = 3_000
"""About that many operations of stages in all cuts that are compared, a fraction of a second."""
_CLIMB = 0.4
"""The part of it for neighbours."""
_TOO_MUCH = 10_000
"""A cut that takes more to time is not timed: a thousand stages that share devices."""
_UNTIMED = "by work and messages alone; so many stages on shared devices are too many to time other cuts"
_MEMORY = 3
"""The effort of the memory model for each node."""
_STEPS = 30_000
"""Steps of the search for cuts whose devices work less than the best tick."""
_CUTS = 4_000
"""Of them, as many as can be sorted by their lower bounds."""
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
        """The tick's."""
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

    def fastest(self, starts: Sequence[Placement]) -> Placement | None:
        """Return the fastest placement that was found, with its guarantee; None where none fits.

        Args:
            starts: placements that keep the memory limits; without any, all cuts are tried, if they are few.

        Raises:
            Deadlock: a start would wait for ever.
        """
        for start in starts:
            programs = self.inputs.programs(start, start.schedule)
            if self._effort(len(programs), max(program.depth for program in programs), resolved=True) > _TOO_MUCH:
                return evolve(start, guarantee=_UNTIMED)
            self._time(self._cut(start), start, programs, fits=True)
        self._climb(_EFFORT * (1 - _CLIMB))
        if not self._at_bound():
            self.proven = self._compare_others() and not self._inexact
            self._climb(0)
        return None if self.best is None else evolve(self.best.placement, guarantee=self._guarantee())

    @property
    def compared(self) -> int:
        """Number of cuts that the time model has seen."""
        return len(self._seen)

    def _cut(self, stages: Partition) -> Cut:
        device = {one.name: place for place, one in enumerate(self.inputs.devices)}
        hosts = [device[stage.device] for stage in stages.stages]
        return cut_of([stage.nodes for stage in stages.stages], hosts, self.inputs.graph.order)

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
        stages = partition(self.inputs.graph, named(cut, self.inputs.graph.order), [""])
        names = [self.inputs.devices[host].name for host in cut.hosts]
        hosted = Partition(
            stages=tuple(evolve(stage, device=name) for stage, name in zip(stages.stages, names, strict=True))
        )
        try:
            placement = self.placed(hosted)
            return self._time(cut, placement, self.inputs.programs(placement, placement.schedule))
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
        if self.inputs.schedule == "auto" and not resolved:
            operations *= 5 if shared else 3
        return 2 + len(self.inputs.graph.order) / 8 + stages * operations

    def _climb(self, left: float) -> None:
        """Go on to a faster neighbour as long as there is one, with that much effort left."""
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
        """Time the cuts that may be faster, as far as the effort reaches; return whether there are no others."""
        choices = list(islice(device_choices(self.space.kinds, self.space.stages), CHOICES + 1))
        accounts, steps = self.cut_bound.accounts, iter(range(_STEPS))
        if len(choices) > CHOICES:
            return False
        try:
            cuts = [cut for one in choices for cut in self.space.below(one, accounts, self._limit(), steps)]
        except OutOfSteps:
            return False
        if len(cuts) > _CUTS:
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
            return f"optimal: no {what}{kept} has a smaller tick{self._terms()}"
        compared = f"the smallest tick found, with {self.compared} {what}{'s' if self.compared > 1 else ''} timed"
        if not self.bound:
            return compared
        gap = ceil(1e3 * (self.best.seconds / self.bound - 1)) / 1e3
        return f"{compared}{self._terms()}, within {gap:.1%} of a lower bound of all"

    def _terms(self) -> str:
        """Return which cuts are compared."""
        order = ", devices in their listed order" if len(set(self.space.kinds)) > 1 else ""
        if self.space.stages > len(self.inputs.devices) > 1:
            return f", every device hosting neighbouring stages{order}"
        return order
