"""What each node keeps for its backward, where the specification leaves that open: as fast as memory allows.

    least      every node keeps least: a reversible one nothing, a buffered one its input
    cut        the stages that are best for what nodes keep
    fill       in these stages, nodes keep what saves most seconds for its bytes times the micro-batches in flight, as long as it fits;
               then, of each device's nodes, the fastest of all choices that fits, as far as the effort reaches
    again      from the cut on, until nothing changes; at first for nodes that keep least, then for nodes that keep what is fastest

The fastest placement that was found is taken. With `fill`, the bytes only say what is tried first: whether it fits is what the memory model
says.

Where no cut fits for nodes that keep least, the nearest one is taken: in it, nodes keep what lowers the largest share of a limit, and it is
cut again for that, until something fits or nothing changes; then the same from nodes that keep something else.

Decision: nodes of delayed stages keep no graphs, since these would need the parameters of their forwards, unless the specification allows it;
so all choices have the parameters that the method has (`Method.mode`).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from itertools import combinations, product
from math import inf, prod
from typing import get_args

from attrs import define, evolve, field, frozen

from petra_graph.compiler.durations import node_seconds
from petra_graph.compiler.measures import fits, held_bytes, shares
from petra_graph.compiler.memory_and_time import Prediction
from petra_graph.compiler.node_table import buffer_bytes, version_bytes
from petra_graph.compiler.placement_search import resolved_placement
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.compiler.simulator.steady_state import tick
from petra_graph.errors import NoFeasiblePlan
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.program.placement import Partition, Placement
from petra_graph.spec.model import BufferedKeeps, Keeps, KeepsByNode, Kind
from petra_graph.units import listed, plural, seconds

_ROUNDS = 4
"""Cuts from one beginning, at most."""
_EFFORT = 200_000
"""About that many operations of nodes that the memory model executes for all choices; seconds."""
_PART = 0.4
"""The part of the effort that is left, for the choices of one device's nodes or for those that need least memory."""
_SEARCH = 150
"""Runs of the memory model as which a search for a cut counts."""
_EQUAL = 1e-9
_DOES: Mapping[Keeps, str] = {"nothing": "reconstruct", "input": "recompute", "graph": "keep their graphs"}
_NodeKeeps = tuple[str, Keeps]
"""A node, and what it is to keep."""


def place_and_keep(inputs: PlannerInputs, search: Callable[[PlannerInputs], Placement], *, fill: bool) -> Placement:
    """Return the fastest placement that a search finds for some choice of what nodes keep, with that choice.

    Args:
        inputs: what they say of what nodes keep is replaced.
        search: places the network for what its inputs say that nodes keep; raises NoFeasiblePlan where nothing fits.
        fill: use the memory that is left; otherwise nodes keep least.

    Raises:
        NoFeasiblePlan: nothing was found that fits, whatever nodes keep; of nodes that keep least.
    """
    choice = _Choice(inputs=inputs, search=search)
    first = choice.place_least()
    if not fill:
        return first
    choice.improve(first)
    if any(inputs.limits):
        fastest = choice.fill_memory(first, limited=False)
        choice.improve(choice.cut_without_limits(fastest))
        if found := choice.search_or_none(fastest):
            choice.improve(found)
        for kept in choice.all_kinds():
            if choice.left > 0 and kept not in choice.tried and (found := choice.search_or_none(kept)):
                choice.improve(found)
    return choice.best(first)


def kept_by_kind(graph: NodeGraph, reversible: Keeps = "nothing", buffered: BufferedKeeps = "input") -> KeepsByNode:
    """Return the same for all nodes of a kind; by default what holds least beside the work."""
    own: Mapping[Kind, Keeps] = {"reversible": reversible, "buffered": buffered}
    return {name: own[graph.nodes[name].kind] for name in graph.order if name != graph.head}


@frozen
class _Cost:
    """What it costs if a node keeps something."""

    seconds: float
    """Of a micro-batch."""
    size: float
    """Bytes of all micro-batches in flight, about."""


@define(kw_only=True)
class _Choice:
    """The placements that were found, each with what its nodes keep."""

    inputs: PlannerInputs
    search: Callable[[PlannerInputs], Placement]
    tried: list[KeepsByNode] = field(init=False, factory=list)
    """For which a cut was searched for."""
    found: list[tuple[float, Placement]] = field(init=False, factory=list)
    """Ticks and placements."""
    left: float = field(init=False, default=_EFFORT)
    """The effort that is left."""

    def place_least(self) -> Placement:
        """Return the placement of nodes that keep least, or, where that does not fit, of those that need least together with their work."""
        refused: list[NoFeasiblePlan] = []
        for begin in self.all_kinds():
            kept = begin
            while kept not in self.tried and (self.left > 0 or not refused):
                try:
                    return self._search(kept)
                except NoFeasiblePlan as error:
                    refused.append(error)
                if (nearest := refused[-1].nearest) is None:
                    raise refused[0]
                kept = self._spare_memory(nearest)
                if self._fits(kept, nearest) and (found := self._keep_stages(kept, nearest)):
                    return found
        raise refused[0]

    def improve(self, placement: Placement) -> None:
        """Fill memory and cut again, until nothing changes; stages in which nodes that keep least do not fit are left as they are."""
        for _ in range(_ROUNDS):
            kept = self.fill_memory(placement)
            if not self._fits(kept, placement):
                return
            self._keep_stages(kept, placement)
            if kept in self.tried or not (again := self.search_or_none(kept)):
                return
            placement = again

    def cut_without_limits(self, kept: KeepsByNode) -> Placement:
        """Return the cut for what nodes keep that is best without limits, which it need not keep."""
        devices = tuple(evolve(device, memory_bytes=None) for device in self.inputs.devices)
        return evolve(self.search(evolve(self.inputs, kept=kept, devices=devices)), devices=self.inputs.devices)

    def search_or_none(self, kept: KeepsByNode) -> Placement | None:
        """Return the cut for what nodes keep; None where none fits."""
        try:
            return self._search(kept)
        except NoFeasiblePlan:
            return None

    def fill_memory(self, placement: Placement, *, limited: bool = True) -> KeepsByNode:
        """Return what the nodes of these stages keep if what saves most seconds for its bytes comes first.

        Args:
            limited: as long as it fits.
        """
        costs, kept = self._costs(placement), kept_by_kind(self.inputs.graph)
        if limited and placement.kept and not self._fits(kept, placement):
            kept = placement.kept

        def saves(*changes: _NodeKeeps) -> float:
            return sum(costs[name, kept[name]].seconds - costs[name, keeps].seconds for name, keeps in changes)

        def worth(change: _NodeKeeps) -> tuple[float, float]:
            more = costs[change].size - costs[change[0], kept[change[0]]].size
            return saves(change) / max(more, 1.0), saves(change)

        left = sorted(costs)
        while left:
            change = max(left, key=worth)
            left.remove(change)
            if saves(change) > 0 and (not limited or self._fits(_change(kept, change), placement)):
                kept = _change(kept, change)
        if limited and self._fits(kept, placement):
            for device in dict.fromkeys(stage.device for stage in placement.stages):
                names = {name for stage in placement.stages if stage.device == device for name in stage.nodes}
                kept = self._fastest(
                    kept, placement, {change: cost for change, cost in costs.items() if change[0] in names}
                )
        return kept

    def _fastest(self, kept: KeepsByNode, placement: Placement, costs: Mapping[_NodeKeeps, _Cost]) -> KeepsByNode:
        """Return the fastest of all choices for some nodes that fits, if that is found before the effort ends; the fastest are tried first."""
        options: dict[str, list[tuple[float, Keeps]]] = {}
        for (name, keeps), cost in costs.items():
            insort(options.setdefault(name, []), (cost.seconds, keeps))
        enough = sum(costs[name, kept[name]].seconds for name in options) * (1 - _EQUAL)
        waiting = [(sum(own[0][0] for own in options.values()), (0,) * len(options))]
        least = self.left * (1 - _PART)
        while waiting and waiting[0][0] < enough and self.left > least:
            spent, chosen = heappop(waiting)
            changes = [(name, own[at][1]) for (name, own), at in zip(options.items(), chosen, strict=True)]
            if self._fits(_change(kept, *changes), placement):
                return _change(kept, *changes)
            last = max((place for place, at in enumerate(chosen) if at), default=0)
            for place, own in list(enumerate(options.values()))[last:]:
                if (at := chosen[place] + 1) < len(own):
                    more = own[at][0] - own[at - 1][0]
                    heappush(waiting, (spent + more, (*chosen[:place], at, *chosen[place + 1 :])))
        return kept

    def best(self, first: Placement) -> Placement:
        """Return the fastest placement, and say what it gains over the first."""
        least = next(spent for spent, placement in self.found if placement is first)
        spent, best = min(self.found, key=lambda one: one[0])
        kept = [*(best.kept or {}).values()]
        does = listed(f"{kept.count(keeps)} {does}" for keeps, does in _DOES.items() if keeps in kept)
        said = f'method.keep = "auto": {does}, for {seconds(spent)} a micro-batch; if every node kept as little as it can, {seconds(least)}'
        tried = f"the smallest tick found, of cuts for {plural(len(self.tried), 'choice')} of what nodes keep"
        return evolve(best, notes=(*best.notes, said), guarantee=best.guarantee and tried)

    def _search(self, kept: KeepsByNode) -> Placement:
        self.tried.append(kept)
        self.left -= _SEARCH * self._cost(len(self.inputs.devices))
        return self._add(evolve(self.search(evolve(self.inputs, kept=kept)), kept=kept))

    def _keep_stages(self, kept: KeepsByNode, placement: Placement) -> Placement | None:
        """Return the stages of a placement with the depths that follow from what nodes keep; None where these do not fit."""
        made = resolved_placement(evolve(self.inputs, kept=kept), Partition(stages=placement.stages))
        found = evolve(placement, schedule=made.schedule, kept=kept)
        return self._add(found) if self._fits(kept, found) else None

    def _add(self, placement: Placement) -> Placement:
        """Add a placement, with what its nodes keep in their stages: a delayed one may be asked for a graph that it cannot keep."""
        segments = [segment for program in self.inputs.placed(placement) for segment in program.segments]
        keeps = {name: segment.keeps for segment in segments for name in segment.nodes}
        placement = evolve(placement, kept={name: keeps[name] for name in placement.kept or {}})
        self.found.append((tick(Prediction(inputs=self.inputs, placement=placement).pipeline).seconds, placement))
        return placement

    def _fits(self, kept: KeepsByNode, placement: Placement) -> bool:
        self.left -= self._cost(len(placement.stages))
        return fits(self.inputs, evolve(placement, kept=kept))

    def _cost(self, stages: int) -> int:
        """Return the effort of one run of the memory model."""
        return (2 * stages + 3 * self.inputs.accumulation) * len(self.inputs.graph.order)

    def _spare_memory(self, placement: Placement) -> KeepsByNode:
        """Return what nodes keep if the largest share of a limit is lowered: by one choice for each kind, then by one node or two at a time."""
        every = self.all_kinds()
        options = {name: list(dict.fromkeys(one[name] for one in every)) for name in every[0]}
        least, tries = self.left * (1 - _PART), self.left * _PART / self._cost(len(placement.stages))
        if prod(map(len, options.values())) <= tries:
            every = [dict(zip(options, choice, strict=True)) for choice in product(*options.values())]
        largest, _, kept = min((self._share(kept, placement), place, kept) for place, kept in enumerate(every))
        changes = [(name, keeps) for name, own in options.items() for keeps in own]
        moves: list[list[tuple[_NodeKeeps, ...]]] = [[(change,) for change in changes], [*combinations(changes, 2)]]
        size = 0
        while largest > 1 and size < len(moves) and self.left > least:
            before = kept
            for move in moves[size]:
                if self.left <= least:
                    break
                share = self._share(_change(before, *move), placement, largest)
                if share < largest:
                    kept, largest = _change(before, *move), share
            size = 0 if kept != before else size + 1
        return kept

    def all_kinds(self) -> list[KeepsByNode]:
        """Return the choices in which all nodes of a kind keep the same."""
        return [kept_by_kind(self.inputs.graph, *keeps) for keeps in product(get_args(Keeps), get_args(BufferedKeeps))]

    def _share(self, kept: KeepsByNode, placement: Placement, most: float = inf) -> float:
        """Return the largest share that a device would hold of its limit, or one above `most`."""
        self.left -= self._cost(len(placement.stages))
        limits = self.inputs.limits
        enough = [inf if limit is None else most * limit for limit in limits]
        return max(shares(held_bytes(self.inputs, evolve(placement, kept=kept), enough), limits))

    def _costs(self, placement: Placement) -> Mapping[_NodeKeeps, _Cost]:
        """Return the costs of all that each node may keep in these stages."""
        inputs, found = self.inputs, {}
        for reversible, buffered in zip(get_args(Keeps), ("input", *get_args(BufferedKeeps)), strict=True):
            kept = kept_by_kind(inputs.graph, reversible, buffered)
            for program in inputs.placed(evolve(placement, kept=kept)):
                for segment in program.segments:
                    for name in segment.nodes if segment.kind != "head" else ():
                        node = inputs.costs.nodes[name]
                        spent = node_seconds(program, segment, name, inputs.clocks[program.device])
                        versions = version_bytes(segment, node) / inputs.accumulation if program.delayed else 0
                        found[name, segment.keeps] = _Cost(
                            spent.forward + spent.backward + spent.update / inputs.accumulation,
                            program.depth * (buffer_bytes(segment, node, inputs) + versions),
                        )
        return found


def _change(kept: KeepsByNode, *changes: _NodeKeeps) -> KeepsByNode:
    return {**kept, **dict(changes)}
