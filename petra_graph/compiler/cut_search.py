"""The search among cuts, for whatever is to be least: from starts to neighbours.

    climb     to a better neighbour of the best cut, as long as there is one
    widen     the neighbours of all cuts so far, those with the least bounds first, until one is better

A cut whose lower bound is not below the best is not measured.

Decision: cuts are measured until the measure's effort is used up, which is counted, not timed: the same specification gives the same
stages on any machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from math import inf
from typing import Protocol

from attrs import define, field, frozen

from petra_graph.compiler.cuts import Cut, CutSpace
from petra_graph.errors import SpecError
from petra_graph.program.placement import Placement

_CLIMB = 0.4
"""The part of the effort that is left when climbing ends."""
_DETOUR = 1.25
"""Cuts with a larger bound, as part of the best value, lead nowhere."""


@frozen(kw_only=True)
class Found:
    """A cut with its placement and its value."""

    cut: Cut
    placement: Placement
    value: float


class Measure(Protocol):
    """What is to be least."""

    left: float
    """The effort that is left."""

    @property
    def equal(self) -> float:
        """The relative difference of values that count as equal."""

    def bound(self, cut: Cut) -> float:
        """Return a number that the cut's value is not below."""

    def below(self, cut: Cut, limit: float) -> Found | None:
        """Return a cut whose value is below the limit, None if its value is not.

        Raises:
            SpecError: the listed depths do not fit the cut.
        """


@define(kw_only=True)
class CutSearch:
    """The search among the cuts into a number of stages, or among the places of given stages."""

    space: CutSpace
    measure: Measure
    enough: float = -inf
    """A value that needs not be improved."""
    best: Found | None = None
    measured: int = field(init=False, default=0)
    """Cuts."""
    _seen: set[Cut] = field(init=False, factory=set)
    _waiting: list[tuple[float, Cut]] = field(init=False, factory=list)
    """Cuts whose neighbours are still to be looked at, by their bounds."""

    @property
    def satisfied(self) -> bool:
        return self.best is not None and self.best.value <= self.enough

    def offer(self, found: Found) -> bool:
        """Take a cut that was measured, and return whether it is the best so far."""
        if found.cut not in self._seen:
            self._seen.add(found.cut)
            heappush(self._waiting, (self.measure.bound(found.cut), found.cut))
            self.measured += 1
        if found.value >= self._limit():
            return False
        self.best = found
        return True

    def consider(self, cut: Cut, bound: float | None = None) -> bool:
        """Measure a cut unless its bound rules it out, and return whether it is the best so far."""
        if cut in self._seen:
            return False
        self._seen.add(cut)
        bound = self.measure.bound(cut) if bound is None else bound
        if bound < _DETOUR * self._limit():
            heappush(self._waiting, (bound, cut))
        if bound >= self._limit():
            return False
        self.measured += 1
        try:
            found = self.measure.below(cut, self._limit())
        except SpecError:  # The listed depths do not fit this cut.
            return False
        self.best = found or self.best
        return found is not None

    def run(self) -> None:
        """Search from the starts, one at least."""
        self.climb(self.measure.left * _CLIMB)
        while self._waiting and self.measure.left > 0 and not self.satisfied:
            bound, cut = heappop(self._waiting)
            if bound < _DETOUR * self._limit() and self._look_around(cut, 0):
                self.climb()

    def climb(self, left: float = 0.0) -> None:
        """Move to a better neighbour as long as there is one, and more than some effort is left."""
        while self.best is not None and not self.satisfied and self._look_around(self.best.cut, left):
            pass

    def _look_around(self, cut: Cut, left: float) -> bool:
        """Measure the neighbours of a cut, those with the least bounds first, and return whether one is the best so far."""
        for bound, near in self._by_bound(self.space.neighbours(cut)):
            if self.measure.left <= left:
                return False
            if self.consider(near, bound):
                heappush(self._waiting, (0.0, cut))  # It has other neighbours.
                return True
        return False

    def _by_bound(self, cuts: Iterable[Cut]) -> list[tuple[float, Cut]]:
        unseen = [cut for cut in cuts if cut not in self._seen]
        self.measure.left -= len(unseen) * self.space.count / 50
        return sorted((self.measure.bound(cut), cut) for cut in unseen)

    def _limit(self) -> float:
        """Return the value that a cut has to undercut."""
        return inf if self.best is None else self.best.value * (1 - self.measure.equal)
