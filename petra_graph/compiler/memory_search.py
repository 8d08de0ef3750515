"""What the memory model says of a cut's fullest device: the nearest cut to the limits, and the cut that needs least.

Under limits, a device's bytes count divided by its limit's part of the largest limit.

Decision: which cuts are tried under limits, and in which order, depends on the proportions of the limits, never on their size, which only
says where the search ends. So what limits allow, larger ones in the same proportions do not refuse; where all cuts were
tried, no larger ones do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from math import inf

from attrs import define, field

from petra_graph.compiler.cut_search import CutSearch, Found
from petra_graph.compiler.cuts import CHOICES, Account, Cut, CutSpace, Hosts, device_orders
from petra_graph.compiler.memory_table import MemoryTable, is_tabulable
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.compiler.proposals import Candidate, Limits, Proposals, held_bytes
from petra_graph.program.placement import Partition, Placement

_EFFORT = 400_000
"""About that many operations of nodes that the memory model executes for all cuts; seconds."""
_AIM = 0.99
"""The part of the least bytes so far that the solver has to stay below."""
_ROUNDING = 1e-12
Starts = Sequence[tuple[Proposals, Candidate]]
"""Of a search: solvers, and what they have found."""


@define(kw_only=True, slots=False)
class Bytes:
    """The bytes of the fullest device, by the memory model."""

    inputs: PlannerInputs
    placed: Callable[[Partition], Placement]
    """Resolves the schedule; raises SpecError where the listed depths do not fit."""
    within_limits: bool
    """Whether cuts that break a device's limit count for nothing; otherwise bytes count as parts of limits, of which there is one at least."""
    left: float = field(init=False)
    equal: float = 0.0

    def __attrs_post_init__(self) -> None:
        self.left = _EFFORT

    @cached_property
    def enough(self) -> float:
        """The value of a cut that fits."""
        if self.within_limits:
            return 0.0
        return max(limit for limit in self.inputs.limits if limit is not None) * (1 + _ROUNDING)

    @cached_property
    def parts(self) -> Mapping[str, float]:
        """What bytes are divided by, by the device's name."""
        if self.within_limits:
            return dict.fromkeys((device.name for device in self.inputs.devices), 1.0)
        largest = max(limit for limit in self.inputs.limits if limit is not None)
        limits = {device.name: device.memory_bytes for device in self.inputs.devices}
        return {name: inf if limit is None else limit / largest for name, limit in limits.items()}

    @cached_property
    def accounts(self) -> Sequence[Account]:
        """What a device holds once all its stages have made an update: their nodes' parameters and optimizer state."""
        nodes = [self.inputs.costs.nodes[name] for name in self.inputs.graph.order]
        sizes = [node.parameter_bytes + node.statistics_bytes + node.optimizer_bytes for node in nodes]
        shares = [[size / self.parts[device.name] for size in sizes] for device in self.inputs.devices]
        return [Account(own, own, 0.0) for own in shares]

    def bound(self, cut: Cut) -> float:
        load = [0.0] * len(self.accounts)
        for node, stage in enumerate(cut.stages):
            host = cut.hosts[stage]
            load[host] += self.accounts[host].inner[node]
        return max(load)

    def order_bound(self, _: Hosts) -> float:
        return 0.0

    def below(self, cut: Cut, limit: float) -> Found | None:
        candidate = self.candidate(cut, limit)
        found = self.of(candidate)
        return None if found.value >= limit or (self.within_limits and not candidate.fits) else found

    def candidate(self, cut: Cut, limit: float = inf) -> Candidate:
        """Return a cut with the bytes of its devices, no more of them than where one has the limit."""
        self.left -= (2 * len(cut.hosts) + 3 * self.inputs.accumulation) * len(cut.stages)
        placement = self.placed(self.inputs.hosted(cut))
        most = [limit * self.parts[device.name] for device in self.inputs.devices]
        return Candidate(inputs=self.inputs, placement=placement, held_bytes=held_bytes(self.inputs, placement, most))

    def of(self, candidate: Candidate) -> Found:
        devices = zip(candidate.held_bytes, candidate.inputs.devices, strict=True)
        return Found(
            cut=self.inputs.cut(candidate.placement),
            placement=candidate.placement,
            value=max(used / self.parts[device.name] for used, device in devices),
        )


def search_bytes(measure: Bytes, space: CutSpace, starts: Starts) -> CutSearch:
    """Return a search from starts, one at least, and from what a solver finds below the least bytes so far."""
    search = CutSearch(space=space, measure=measure, enough=measure.enough)

    def offer(candidate: Candidate) -> None:
        if candidate.fits or not measure.within_limits:
            search.offer(measure.of(candidate))

    for _, candidate in starts:
        offer(candidate)
    solver, latest = min((one for one in starts if one[1].solver_bytes), key=lambda one: measure.of(one[1]).value)

    def limits() -> Limits:
        least = _AIM * search.least
        return [
            None if (part := measure.parts[device.name]) == inf else least * part for device in solver.inputs.devices
        ]

    for candidate in solver.corrected("memory", latest, limits):
        offer(candidate)
        if search.satisfied:
            break
    if not search.finished and is_tabulable(measure.inputs, space):
        _tabulate(search, measure)
    if not search.finished:
        search.run()
    return search


def _tabulate(search: CutSearch, measure: Bytes) -> None:
    """Search all cuts by the table of the memory model, as far as the effort reaches."""
    assert search.best is not None, "there is a start"
    inputs = measure.inputs
    table = MemoryTable(inputs=inputs, stages=search.space.stages)
    sizes = [
        (measure.parts[device.name], (measure.within_limits and device.memory_bytes) or inf)
        for device in inputs.devices
    ]
    # How fast devices are, and where they stand, is nothing to bytes.
    orders = list(islice(device_orders(sizes, search.space.stages, listed=search.space.listed), CHOICES + 1))
    for hosts in orders[:CHOICES]:
        parts, limits = zip(*(sizes[host] for host in hosts), strict=True)
        while not search.satisfied:
            value, stages = table.least(parts, limits)
            if value >= search.best.value:
                break
            if measure.left <= 0:
                return
            candidate = measure.candidate(Cut(stages, hosts))
            table.found(stages, [candidate.held_bytes[host] for host in hosts])
            if candidate.fits or not measure.within_limits:
                search.offer(measure.of(candidate))
    search.complete = len(orders) <= CHOICES
