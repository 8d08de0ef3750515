"""The search among cuts, from starts to neighbours, for the smallest tick, or until the devices hold what they may.

    climb     to a better neighbour of the best cut, as long as there is one
    widen     the neighbours of all cuts so far, those with the least bounds first, until one is better

A cut whose lower bound is not below the best is not measured.

Decision: cuts are measured until the measure's effort is used up, which is counted, not timed: the same specification gives the same
stages on any machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from heapq import heappop, heappush
from itertools import pairwise
from math import inf

from attrs import define, field, frozen

from petra_graph.compiler.cuts import Cut, CutSpace
from petra_graph.compiler.node_table import NodeTable
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.compiler.simulator.steady_state import tick
from petra_graph.errors import SpecError
from petra_graph.program.device_types import Link
from petra_graph.program.placement import Partition, Placement
from petra_graph.program.stage_program import StageProgram

_CLIMB = 0.4
"""The part of the effort that is left when climbing ends."""
_DETOUR = 1.25
"""Cuts with a larger bound, as part of the best value, lead nowhere."""
_TICKS = 1_500
"""About that many operations of stages in all cuts that are timed, a fraction of a second."""
_MEMORY = 3
"""The effort of the memory model for each node, as part of that."""
_RUNS = 150_000
"""About that many operations of nodes that the memory model executes for all cuts; seconds."""
_NEARLY = 0.8
"""The part of the table's sums that a device holds at least, nearly always."""
_ROUNDING = 1e-12


@frozen(kw_only=True)
class Found:
    """A cut with its placement and its value."""

    cut: Cut
    placement: Placement
    value: float


@define(kw_only=True, slots=False)
class Seconds:
    """The tick of a cut that keeps the memory limits."""

    inputs: PlannerInputs
    table: NodeTable
    placed: Callable[[Partition], Placement]
    """Resolves the schedule; raises SpecError where the listed depths do not fit."""
    left: float = _TICKS
    equal: float = 1e-9
    """Seconds are sums of rounded numbers."""

    @cached_property
    def _links(self) -> Mapping[tuple[int, int], Link]:
        numbered = list(enumerate(self.inputs.devices))
        return {(a, b): one.link_to(other) for a, one in numbered for b, other in numbered}

    @cached_property
    def _is_chain(self) -> bool:
        graph = self.inputs.graph
        return all(graph.digraph.has_edge(*ends) for ends in pairwise(graph.order))

    def bound(self, cut: Cut) -> float:
        """Return a number that the tick is not below: the seconds of the busiest device or link, or of a chain's way to the head and back, shared by the micro-batches on it.

        The time model waits in addition.
        """
        stages, hosts = cut
        last, way = len(hosts) - 1, 0.0
        busy: dict[object, float] = dict.fromkeys(hosts, 0.0)
        for host in hosts:
            busy[host] += self.table.seconds[host].stage
        for node, stage in enumerate(stages):
            seconds = self.table.seconds[hosts[stage]]
            busy[hosts[stage]] += (seconds.last if stage == last else seconds.inner)[node]
            way += seconds.passes[node]
        for producer, consumer, forward, backward in self.table.messages:
            sender, receiver = hosts[stages[producer]], hosts[stages[consumer]]
            if sender != receiver:
                link = self._links[sender, receiver]
                for direction, size in (((sender, receiver), forward), ((receiver, sender), backward)):
                    busy[direction] = busy.get(direction, 0.0) + size / link.bytes_per_second
                    way += link.seconds(size) if consumer == producer + 1 else 0.0
        if not self._is_chain or self.inputs.schedule == "auto":
            return max(busy.values())
        return max(*busy.values(), way / self.table.in_flight(last)[0])

    def below(self, cut: Cut, limit: float) -> Found | None:
        placement = self.placed(self.inputs.hosted(cut))
        shared = len(cut.hosts) > len(self.inputs.devices)  # Then the memory model is faster than the time model.
        if shared and not self._fits(placement):
            return None
        found = self.timed(cut, placement)
        if found.value >= limit:
            return None
        return found if shared or self._fits(placement) else None

    def _fits(self, placement: Placement) -> bool:
        if any(self.inputs.limits):
            self.left -= _MEMORY * len(self.inputs.graph.order)
        return fits(self.inputs, placement)

    def timed(self, cut: Cut, placement: Placement) -> Found:
        programs = self.inputs.placed(placement)
        self.left -= self.effort(programs)
        return Found(cut=cut, placement=placement, value=tick(self.inputs.pipeline(programs)).seconds)

    def effort(self, programs: Sequence[StageProgram], *, resolved: bool = False) -> float:
        """Return the effort of timing a cut, with finding its depths unless they are `resolved`."""
        stages, window = len(programs), self.inputs.accumulation
        shared = stages > len(self.inputs.devices)
        operations = 2 * (max(program.depth for program in programs) + 4 * window) if shared else 1 + window / 4
        if self.inputs.schedule == "auto" and not resolved:
            operations *= 5 if shared else 3
        return 2 + len(self.inputs.graph.order) / 8 + stages * operations


@frozen(kw_only=True)
class Held(Found):
    """A cut with the bytes of every device."""

    held: Sequence[int]
    fits: bool


@define(kw_only=True, slots=False)
class Bytes:
    """The bytes of the fullest device, each divided by its limit's part of the largest limit.

    Decision: which cuts are tried under limits, and in which order, depends on the proportions of the limits, never on their size,
    which only says where the search ends. So what limits allow, larger ones in the same proportions do not refuse.
    """

    inputs: PlannerInputs
    table: NodeTable
    placed: Callable[[Partition], Placement]
    """Resolves the schedule; raises SpecError where the listed depths do not fit."""
    left: float = field(factory=lambda: _RUNS)
    equal: float = 0.0

    @cached_property
    def enough(self) -> float:
        """The value of a cut that fits."""
        return max(limit for limit in self.inputs.limits if limit is not None) * (1 + _ROUNDING)

    @cached_property
    def parts(self) -> Sequence[float]:
        """What the bytes of every device are divided by."""
        return parts_of(self.inputs.limits)

    def bound(self, cut: Cut) -> float:
        """Return a number that the fullest device hardly holds less than, from the table's sums."""
        nodes, stages, hosts = self.table.nodes, cut.stages, cut.hosts
        flying = [self._in_flight(len(hosts) - 1 - stage) for stage in range(len(hosts))]
        load, working = [0.0] * len(self.parts), [0] * len(self.parts)
        for node, stage in zip(nodes, stages, strict=True):
            (depth, versions), host = flying[stage], hosts[stage]
            load[host] += node.resident + versions * node.version
            if node.joins is None or stages[node.joins] != stage:
                load[host] += depth * node.buffer
            working[host] = max(working[host], node.working)
        held = zip(load, working, self.parts, strict=True)
        return _NEARLY * max((kept + own) / part for kept, own, part in held)

    @cached_property
    def _in_flight(self) -> Callable[[int], tuple[int, int]]:
        return cache(self.table.in_flight)

    def below(self, cut: Cut, limit: float) -> Held | None:
        found = self.held(cut, limit)
        return None if found.value >= limit else found

    def held(self, cut: Cut, limit: float = inf) -> Held:
        """Return a cut with the bytes of its devices, no more of them than where one has the limit."""
        self.left -= (2 * len(cut.hosts) + 3 * self.inputs.accumulation) * len(cut.stages)
        placement = self.placed(self.inputs.hosted(cut))
        held = held_bytes(self.inputs, placement, [limit * part for part in self.parts])
        return Held(
            cut=cut,
            placement=placement,
            value=max(used / part for used, part in zip(held, self.parts, strict=True)),
            held=held,
            fits=keeps(held, self.inputs.limits),
        )


def held_bytes(inputs: PlannerInputs, placement: Placement, most: Sequence[float] = ()) -> list[int]:
    """Return the most bytes that every device would hold, by the memory model.

    Args:
        most: bytes of every device; where one would hold more, the result says no more than that.
    """
    names = [device.name for device in inputs.devices]
    enough = dict(zip(names, most, strict=True)) if most else {}
    held = inputs.device_bytes(inputs.placed(placement), enough)
    return [held.get(device.name, 0) for device in inputs.devices]


def fits(inputs: PlannerInputs, placement: Placement) -> bool:
    """Whether the devices' memory suffices for a placement."""
    limits = inputs.limits
    most = [inf if limit is None else limit for limit in limits]
    return all(limit is None for limit in limits) or keeps(held_bytes(inputs, placement, most), limits)


def parts_of(limits: Sequence[int | None]) -> list[float]:
    """Return limits, of which there is one at least, as parts of the largest."""
    largest = max(limit for limit in limits if limit is not None)
    return [inf if limit is None else limit / largest for limit in limits]


def keeps(held: Sequence[int], limits: Sequence[int | None]) -> bool:
    return all(limit is None or used <= limit for used, limit in zip(held, limits, strict=True))


def shares(held: Sequence[int], limits: Sequence[int | None]) -> list[float]:
    return [0.0 if limit is None else used / limit for used, limit in zip(held, limits, strict=True)]


@define(kw_only=True)
class CutSearch:
    """The search among the cuts into a number of stages, or among the places of given stages."""

    space: CutSpace
    measure: Seconds | Bytes
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
