"""The placement search: cuts are measured by the memory model and the time model, the best first, and then their neighbours.

    starts --> measured: by how much the fullest device exceeds its limit, then the seconds of a tick
                 |   ^
                 v   | neighbours of the best cut that still has any: one unit's stage, one stage's device, what one node keeps
               waiting

Until a cut fits, the order is that of the fullest device's share of its limit, which is the same for limits in the same proportions: what small
limits allow, larger ones do not refuse. Once a cut fits, those with the least bounds come first, and one whose bound is not below the
best tick is not measured. Cuts are counted, not seconds: the same specification gives the same stages on any machine.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from heapq import heappop, heappush
from itertools import pairwise, product
from math import inf
from operator import itemgetter
from typing import Literal, NamedTuple

import numpy as np
from attrs import evolve

from petra_graph.compiler.cuts import Cut, Space, starts
from petra_graph.compiler.lower import partition
from petra_graph.compiler.node_table import NodeTable, choices_by_kind, fill_memory, node_table
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.compiler.spec_checks import check_depths
from petra_graph.compiler.timing import TOLERANCE, least_depths, tick
from petra_graph.errors import NoFeasiblePlan, Problem, SpecError, shown
from petra_graph.program.device_types import Device
from petra_graph.program.stage_program import Partition, Placement
from petra_graph.spec.model import Keeps, KeepsByNode
from petra_graph.units import memory

ABOUT_AS_FAST = 1.05
"""A tick over the best number's, of fewer stages that are taken: each stage more is more delay."""
_DETOUR = 1.25
"""Cuts with a larger bound, as part of the best tick, lead nowhere."""
_EFFORT, _LEAST = 1500.0, 6
"""About that many operations of stages in all cuts that are timed, and at least that many cuts."""
_PATIENCE, _MOST = 60, 400
"""Cuts among which none is nearer to the limits, and cuts, after which the search for one that fits ends."""
_ROUNDS = 3
_EQUAL = 1 - 1e-9
_LESS = 'take smaller batches, more devices, method.keep = "auto", or another method: `petra-graph plan SPEC --compare` says what each would hold'

Keep = Literal["least", "fill"]
"""How much nodes are to keep, where that is open: as little as they can, or as much as fits."""
_Tables = Callable[[tuple[Keeps, ...]], NodeTable]
"""The table of a network by what every node keeps; of (), as the inputs say. It does not depend on the number of stages."""


class Found(NamedTuple):
    """A cut that was measured."""

    cut: Cut
    placement: Placement
    share: float
    """The largest share of its limit that a device holds, the fullest; 0 where memory has no limit."""
    fullest: int
    seconds: float


def place(
    inputs: PlannerInputs,
    stages: int | Literal["auto"] | Partition,
    keep: Keep | None = None,
    hosts: Sequence[str] | None = None,
) -> Placement:
    """Cut the network into a number of stages, or take the given ones, and place them, on given devices or where costs decide.

    Args:
        stages: "auto": the fewest, at most one a device, whose tick is within 5 % of the best number's.
        keep: the search chooses what nodes keep, too; None: they keep what the inputs say.

    Raises:
        SpecError: the listed depths do not fit the stages.
        NoFeasiblePlan: the devices' memory does not suffice, for "auto" whatever the number; then of the largest one.
    """
    tables, schedule = cache(lambda keeps: node_table(_under(inputs, keeps))), inputs.schedule
    if isinstance(stages, Partition):
        check_depths(schedule, inputs.graph, stages)
        stage_of = {name: number for number, stage in enumerate(stages.stages) for name in stage.nodes}
        given = tuple(stage_of[name] for name in inputs.graph.order)
        on = None if hosts is None else tuple(map([device.name for device in inputs.devices].index, hosts))
        return _place(tables, keep, Space(inputs=inputs, stages=len(stages.stages), given=given, hosts=on)).placement
    if isinstance(schedule, tuple):
        stages = len(schedule) if stages == "auto" else stages
        if any(before < after for before, after in pairwise(schedule)):
            message = "where costs cut the network, depths must not grow from one stage to the next"
            raise SpecError(Problem(message=message, hint="list the stages, too", path=("method", "schedule")))
    if stages == "auto":
        return _fewest(inputs, tables, keep).placement
    return _place(tables, keep, Space(inputs=inputs, stages=stages)).placement


def only_hosts(stages: Partition, devices: Sequence[Device]) -> list[str] | None:
    """Return the device of every given stage, where no other order or share of the devices can be better; None: costs decide."""
    count = len(stages.stages)
    kinds = {(device.type, device.link, device.network, device.memory_bytes) for device in devices}
    if len(devices) > 1 and (len(kinds) > 1 or len(devices) < count):
        return None
    return [stage.device for stage in stages.spread_over([device.name for device in devices][:count]).stages]


def _under(inputs: PlannerInputs, keeps: tuple[Keeps, ...]) -> PlannerInputs:
    """Return the inputs under which nodes keep something; of (), as they are."""
    names = zip(inputs.graph.order[:-1], keeps[:-1], strict=True) if keeps else ()  # the head keeps nothing
    return evolve(inputs, kept=dict(names)) if keeps else inputs


def _fewest(inputs: PlannerInputs, tables: _Tables, keep: Keep | None) -> Found:
    # Seconds that hardly any tick is below, of every number of stages: those of the longest node, and an even share of all work. Nodes
    # that share a stage may take less than apart: they hand nothing on.
    choices = [()] if keep is None else [_keeps(inputs, kept) for kept in choices_by_kind(inputs.graph)]
    nodes = np.min([tables(keeps).seconds.min(axis=(0, 1)) for keeps in choices], axis=0).tolist()
    most = min(len(inputs.devices), inputs.graph.most_stages(inputs.together))
    bounds = {stages: max(*nodes, sum(nodes) / stages) for stages in range(1, most + 1)}
    found, refused, enough = dict[int, Found](), dict[int, NoFeasiblePlan](), inf
    for stages in sorted(bounds, key=lambda stages: (bounds[stages], stages)):
        if bounds[stages] < enough:
            try:
                found[stages] = _place(tables, keep, Space(inputs=inputs, stages=stages))
                enough = min(enough, ABOUT_AS_FAST * found[stages].seconds)
            except NoFeasiblePlan as error:
                refused[stages] = error
    if not found:
        raise refused[most]
    return found[min(stages for stages, one in found.items() if one.seconds <= enough)]


def _place(tables: _Tables, keep: Keep | None, space: Space) -> Found:
    """Return the best placement that was found; under `keep` = "fill" its nodes then keep more, and the network is cut again for that."""
    inputs = space.inputs
    if keep is None:
        return _search(tables, space)

    def search(kept: KeepsByNode, *begin: Cut) -> Found:
        return _search(tables, space, _keeps(inputs, kept), begin)

    least, *_, most = choices_by_kind(inputs.graph)
    latest = search(least)
    found, tried = [latest], list[KeepsByNode]()
    if keep == "fill":
        # Where there is room, a stage without delay takes more nodes if they keep their graphs, which no cut for other nodes leads to.
        with suppress(NoFeasiblePlan):
            found.append(search(most))
    while keep == "fill" and len(tried) < _ROUNDS:
        kept = fill_memory(inputs, latest.placement)
        if kept in tried:
            break
        tried.append(kept)
        latest = search(kept, latest.cut._replace(keeps=_keeps(inputs, kept)))
        found.append(latest)
    return min(found, key=lambda one: one.seconds)


def _keeps(inputs: PlannerInputs, kept: KeepsByNode) -> tuple[Keeps, ...]:
    return tuple(kept.get(name, "nothing") for name in inputs.graph.order)


def _search(tables: _Tables, space: Space, keeps: tuple[Keeps, ...] = (), begin: Sequence[Cut] = ()) -> Found:
    """Return the better of the cuts that starts within memory limits, and starts without, lead to: either kind finds some that the other misses."""
    found, refused = list[Found](), list[NoFeasiblePlan]()
    for room in (True, False) if any(space.inputs.limits) and space.hosts is None else (True,):
        try:
            found.append(_Search(tables, space, keeps, starts_by_room=room).run(begin))
        except NoFeasiblePlan as error:
            refused.append(error)
    if not found:
        raise refused[0]
    return min(found, key=lambda one: one.seconds)


class _Search:
    """The search among the cuts of one space; `keeps` is what every node keeps, by the inputs, if it may keep something else so that a cut fits."""

    def __init__(self, tables: _Tables, space: Space, keeps: tuple[Keeps, ...], *, starts_by_room: bool) -> None:
        inputs = self._inputs = space.inputs
        self._tables, self._space, self._keeps, self._starts_by_room = tables, space, keeps, starts_by_room
        limits = [limit for limit in inputs.limits if limit is not None]
        self._proportions = [inf if one is None else one / max(limits) for one in inputs.limits] if limits else []
        """Each limit over the largest one; empty without limits."""
        # Stages that share devices are simulated, and depths that are open searched for.
        slower = (3 if inputs.schedule == "auto" else 1) * (8 if space.stages > len(inputs.devices) else 1)
        self._cost = 4 + space.stages * (1 + inputs.accumulation / 4) * slower
        """The operations of timing a cut, about, as parts of the effort."""
        self._left = inf
        self._best: Found | None = None
        self._measured = self._vain = 0
        self._seen = set[Cut]()
        self._waiting = list[tuple[float, float, Cut, int]]()
        """Cuts whose neighbours are still to be looked at: the share of one that does not fit, else its tick or bound, the cut, its fullest device."""
        ends = product(inputs.devices, repeat=2)
        self._bandwidth = np.array([one.link_to(other).bytes_per_second for one, other in ends])
        """From each device to each, one after another."""

    def run(self, begin: Iterable[Cut] = ()) -> Found:
        """Return the best cut that is found from the starts, and from further ones; NoFeasiblePlan: none was found that fits."""
        effort = max(_EFFORT, _LEAST * self._cost)
        if not self._proportions:
            self._left = effort
        for cut in begin:
            self._look_at(cut, self._bound(cut))
        self._start(self._keeps)
        for kept in choices_by_kind(self._inputs.graph)[1:] if self._keeps and not self._fits else ():
            self._start(_keeps(self._inputs, kept))
        while not self._fits and self._waiting and self._vain < _PATIENCE and self._measured < _MOST:
            self._look_around()
        assert self._best is not None
        if not self._fits:
            # The device that is short of most in the nearest cut, and its bytes.
            device = self._inputs.devices[self._best.fullest]
            limit = device.memory_bytes or 0
            held = round(self._best.share * limit)
            message = f"device {shown(device.name)} would hold {memory(held)}, {memory(held - limit)} more than the {memory(limit)} that it may hold"
            if self._measured > 1:
                message += f", in the nearest of {self._measured} cuts"
            raise NoFeasiblePlan(Problem(message=message, hint=_LESS, path=("partition", "memory")))
        if self._proportions:  # What it took to find one that fits was not counted.
            self._left = effort
        while self._waiting and self._left > 0 and self._waiting[0][:2] < (0.0, _DETOUR * self._limit):
            self._look_around()
        return self._best

    @property
    def _fits(self) -> bool:
        return self._best is not None and self._best.seconds < inf

    @property
    def _limit(self) -> float:
        """The tick that a cut has to undercut."""
        return inf if self._best is None else self._best.seconds * _EQUAL

    def _start(self, keeps: tuple[Keeps, ...]) -> None:
        """Look at the starts for what nodes keep, until the effort is spent."""
        proportions = self._proportions if self._starts_by_room else ()
        cuts = [one._replace(keeps=keeps) for one in starts(self._space, self._tables(keeps), proportions)]
        for bound, cut in sorted(((self._bound(cut), cut) for cut in cuts), key=itemgetter(0)):
            if self._left > 0:
                self._look_at(cut, bound)

    def _look_around(self) -> None:
        """Look at the neighbours of the first cut that waits, until one is the best so far."""
        share, _, cut, fullest = first = heappop(self._waiting)
        near = [one for one in self._space.neighbours(cut, fullest if share else None) if one not in self._seen]
        self._left -= len(near) * len(cut.hosts) / 50
        bounds = [self._bound(one) if self._fits else 0.0 for one in near]
        for bound, one in sorted(zip(bounds, near, strict=True), key=itemgetter(0)):
            if self._fits and self._left <= 0:
                return
            if self._look_at(one, bound):
                heappush(self._waiting, first)  # It has other neighbours.
                return

    def _look_at(self, cut: Cut, bound: float) -> bool:
        """Measure a cut unless its bound rules it out, and return whether it is the best so far."""
        if cut in self._seen:
            return False
        self._seen.add(cut)
        # Depths that are searched for may cost a tick so much; a better one than that is not to be seen.
        worth = 1 - TOLERANCE if self._inputs.schedule == "auto" else 1
        if self._fits and bound >= worth * self._limit:
            heappush(self._waiting, (0.0, bound, cut, -1))
            return False

        inputs = _under(self._inputs, cut.keeps)
        members: list[list[str]] = [[] for _ in cut.hosts]
        for name, unit in zip(inputs.graph.order, self._space.unit_of, strict=True):
            members[cut.stages[unit]].append(name)
        stages = partition(inputs.graph, members, [inputs.devices[host].name for host in cut.hosts])
        check_depths(inputs.schedule, inputs.graph, stages)
        placement = resolved_placement(inputs, stages)
        programs = inputs.placed(placement)
        if cut.keeps:  # A delayed node may be asked for a graph that it cannot keep.
            segments = [segment for program in programs for segment in program.segments if segment.kind != "head"]
            placement = evolve(placement, kept={name: segment.keeps for segment in segments for name in segment.nodes})
        held = inputs.held_bytes(placement) if self._proportions else []
        shares = [used / limit if limit else 0.0 for used, limit in zip(held, inputs.limits, strict=False)]
        share = max(shares, default=0.0)
        fullest = shares.index(share) if shares else -1
        seconds = tick(inputs.pipeline(programs)).seconds if share <= 1 else inf

        self._measured += 1
        self._vain += 1
        self._left -= self._cost
        fits = seconds < inf
        heappush(self._waiting, (0.0 if fits else share, seconds if fits else 0.0, cut, fullest))
        if self._best is None or seconds < self._limit or (not self._fits and share < self._best.share):
            self._best, self._vain = Found(cut, placement, share, fullest, seconds), 0
            return True
        return False

    def _bound(self, cut: Cut) -> float:
        """Return a number that the tick is hardly below: the seconds of the busiest device or link."""
        table, hosts, count = self._tables(cut.keeps), np.array(cut.hosts), len(self._inputs.devices)
        stage_of = np.array(cut.stages)[self._space.unit_of]
        host_of = hosts[stage_of]
        work = table.seconds[(stage_of == len(hosts) - 1).astype(int), host_of, np.arange(len(host_of))]
        busy = np.bincount(np.append(hosts, host_of), np.append(table.stage_seconds[hosts], work))
        senders, receivers = host_of[table.edges].T
        apart = senders != receivers
        links = np.column_stack([senders * count + receivers, receivers * count + senders])[apart]
        of_links = np.bincount(links.ravel(), (table.edge_bytes[apart] / self._bandwidth[links]).ravel())
        return float(max(busy.max(), of_links.max(initial=0.0)))


def resolved_placement(inputs: PlannerInputs, stages: Partition) -> Placement:
    """Return stages on devices with their schedule; "auto" becomes the least depths at full speed."""
    named = "1f1b" if inputs.schedule == "auto" else inputs.schedule
    placement = Placement(stages=stages.stages, devices=inputs.devices, schedule=named)
    if inputs.schedule != "auto":
        return placement
    return evolve(placement, schedule=least_depths(inputs.pipeline(inputs.placed(placement))))
