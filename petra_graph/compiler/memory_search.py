"""The search for a cut that keeps the memory limits, by the memory model, where the solver's best do not.

    the solver's nearest --> the solver, corrected, below the least so far --> neighbours of the least --> all cuts, if few

The nearest is the cut whose fullest device holds least, each device's bytes divided by its limit's part of the largest limit.

Decision: which cuts are tried, and in which order, depends on the proportions of the limits, never on their size, which only
says where the search ends. So what limits allow, larger ones in the same proportions do not refuse; where all cuts were
tried, no larger ones do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf

from attrs import define, field

from petra_graph.compiler.cuts import Account, Cut, CutSpace
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.compiler.proposals import CORRECTIONS, Candidate, Proposals, held_bytes
from petra_graph.errors import SpecError
from petra_graph.program.placement import Partition, Placement
from petra_graph.units import noun

_AIM = 0.99
"""The part of the least bytes so far that the solver has to stay below."""
_EFFORT = 400_000
"""About that many operations of nodes that the memory model executes for all cuts; seconds."""


@define(kw_only=True)
class MemorySearch:
    """The search among the cuts into a number of stages, or among the places of given stages."""

    inputs: PlannerInputs
    space: CutSpace
    accounts: Sequence[Account]
    """Of every device."""
    placed: Callable[[Partition], Placement]
    """Resolves the schedule; raises SpecError where the listed depths do not fit."""
    complete: bool = field(init=False, default=False)
    """Whether all cuts were tried, and none fits."""
    _part: dict[str, float] = field(init=False)
    """Of the largest limit, by the device's name; infinite without a limit."""
    _least: Candidate = field(init=False)
    _bytes: float = field(init=False, default=inf)
    """The least one's, in parts."""
    _seen: set[Cut] = field(init=False, factory=set)
    _left: int = field(init=False)
    """Cuts that may be tried."""

    def __attrs_post_init__(self) -> None:
        largest = max(limit for limit in self.inputs.limits if limit is not None)
        self._part = {
            device.name: inf if device.memory_bytes is None else device.memory_bytes / largest
            for device in self.inputs.devices
        }
        micro_batches = 2 * self.space.stages + 3 * self.inputs.accumulation
        self._left = _EFFORT // (micro_batches * self.space.count)

    def nearest(self, starts: Iterable[tuple[Proposals, Candidate]]) -> Candidate:
        """Return the first candidate that fits, or else the one that misses least.

        Args:
            starts: solvers, one at least, with candidates that do not fit.
        """
        solver = None
        for one, candidate in starts:
            if self._improved(candidate):
                solver = one
        assert solver is not None, "there is a start"
        self._correct(solver)
        while not self._least.fits and self._try(self.space.neighbours(self.inputs.cut(self._least.placement))):
            pass
        if not self._least.fits:
            self._try_all()
        return self._least

    def in_vain(self) -> str:
        """Return how many cuts were tried without one that fits, for people."""
        what = noun(len(self._seen), "cut" if self.space.fixed is None else "placement")
        if self.complete:
            return f"none of all {len(self._seen)} {what} fits{self.space.terms}"
        return f"found none that fits, of {len(self._seen)} {what} tried"

    def _correct(self, solver: Proposals) -> None:
        """Have the solver stay below the least bytes so far, corrected by its latest cut."""
        latest: Candidate | None = self._least
        for _ in range(CORRECTIONS):
            if latest is None or self._least.fits:
                return
            parts = [self._part[device.name] for device in solver.inputs.devices]
            limits = [None if part == inf else _AIM * self._bytes * part for part in parts]
            latest = solver.corrected("memory", latest, limits)
            if latest is not None:
                self._improved(latest)

    def _try_all(self) -> None:
        """Try all cuts, those first that differ least from the nearest one."""
        stages = self.inputs.cut(self._least.placement).stages
        cuts = self.space.all_below(self.accounts, inf)
        if cuts is None:
            return

        def difference(cut: Cut) -> int:
            return sum(abs(one - other) for one, other in zip(cut.stages, stages, strict=True))

        waiting = sorted(cuts, key=difference)
        while not self._least.fits and self._try(waiting):
            pass
        self.complete = not self._least.fits and self._left > 0

    def _try(self, cuts: Iterable[Cut]) -> bool:
        """Try cuts until one has less bytes, and return whether one has."""
        for cut in cuts:
            if cut in self._seen:
                continue
            if self._left <= 0:
                return False
            self._left -= 1
            self._seen.add(cut)
            try:
                placement = self.placed(self.inputs.hosted(cut))
            except SpecError:  # The listed depths do not fit this cut.
                continue
            most = [self._bytes * self._part[device.name] for device in self.inputs.devices]
            held = held_bytes(self.inputs, placement, most)
            if self._improved(Candidate(inputs=self.inputs, placement=placement, held_bytes=held)):
                return True
        return False

    def _improved(self, candidate: Candidate) -> bool:
        """Take a candidate that has less bytes than any before, and return whether it has."""
        self._seen.add(self.inputs.cut(candidate.placement))
        devices = candidate.inputs.devices
        held = max(used / self._part[device.name] for used, device in zip(candidate.held_bytes, devices, strict=True))
        if held >= self._bytes:
            return False
        self._least, self._bytes = candidate, held
        return True
