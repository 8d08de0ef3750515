"""The search among cuts, for whatever is to be least: from starts to their neighbours while one has less, then all other cuts.

    starts --the best--> neighbours, while one has less --> all cuts whose lower bound is below the best

A cut whose lower bound is not below the best needs no look. If no such cut is left, the best is the least of all.

Decision: cuts are measured until the measure's effort is used up, which is counted, not timed: the same specification gives the same
stages on any machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import Protocol

from attrs import define, field, frozen

from petra_graph.compiler.cuts import Account, Cut, CutSpace, Hosts
from petra_graph.errors import SpecError
from petra_graph.program.placement import Placement

_CLIMB = 0.4
"""The part of the effort for neighbours."""


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
    def accounts(self) -> Sequence[Account]:
        """What nodes and stages add to the lower bound of each device."""

    @property
    def equal(self) -> float:
        """The relative difference of values that count as equal."""

    def bound(self, cut: Cut) -> float:
        """Return a number that the cut's value is not below."""

    def order_bound(self, order: Hosts) -> float:
        """Return a number that no value on these devices is below."""

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
    enough: float = 0.0
    """A value that needs not be improved."""
    best: Found | None = None
    complete: bool = field(init=False, default=False)
    """Whether it is known that no cut has less than the best."""
    bound: float = field(init=False, default=0.0)
    """No cut that was not measured has less, unless the search is complete."""
    measured: int = field(init=False, default=0)
    """Cuts."""
    _seen: set[Cut] = field(init=False, factory=set)

    @property
    def least(self) -> float:
        return inf if self.best is None else self.best.value

    @property
    def satisfied(self) -> bool:
        return self.least <= self.enough and self.best is not None

    def offer(self, found: Found) -> bool:
        """Take a start that has less than the best, and return whether it has."""
        if found.cut not in self._seen:
            self._seen.add(found.cut)
            self.measured += 1
        if found.value >= self._limit():
            return False
        self.best = found
        return True

    @property
    def finished(self) -> bool:
        return self.satisfied or self.complete

    def run(self) -> None:
        """Search from the starts."""
        self._climb(self.measure.left * (1 - _CLIMB))
        if not self.satisfied:
            self.complete = self._compare_others()
            self._climb(0)

    def _limit(self) -> float:
        """Return the value that a cut has to undercut."""
        return self.least * (1 - self.measure.equal)

    def consider(self, cut: Cut) -> bool:
        """Measure a cut, and return whether it is the best so far."""
        if cut in self._seen:
            return False
        self._seen.add(cut)
        try:
            found = self.measure.below(cut, self._limit())
        except SpecError:  # The listed depths do not fit this cut.
            return False
        self.measured += 1
        self.best = found or self.best
        return found is not None

    def _climb(self, left: float) -> None:
        """Move to a better neighbour as long as there is one, and effort left to measure it."""
        improved = self.best is not None
        while improved and not self.satisfied and self.measure.left > left:
            improved = False
            for cut in self._by_bound(self._around()):
                if self.measure.left <= left:
                    return
                if self.consider(cut):
                    improved = True
                    break

    def _around(self) -> Iterator[Cut]:
        assert self.best is not None
        return self.space.neighbours(self.best.cut)

    def _by_bound(self, cuts: Iterable[Cut]) -> Iterator[Cut]:
        """Yield the cuts that may be better than the best at that time, those with the least bounds first."""
        bounds = {cut: self.measure.bound(cut) for cut in cuts if cut not in self._seen}
        for cut in sorted(bounds, key=bounds.__getitem__):
            if bounds[cut] >= self._limit():
                return
            yield cut

    def _compare_others(self) -> bool:
        """Measure the cuts that may be better, as far as the effort reaches; return whether none is left."""
        cuts = self.space.all_below(self.measure.accounts, self._limit(), self.measure.order_bound)
        if cuts is None:
            return False
        for cut in self._by_bound(cuts):
            if self.satisfied:
                return False
            if self.measure.left <= 0:
                self.bound = self.measure.bound(cut)
                return False
            self.consider(cut)
        return True
