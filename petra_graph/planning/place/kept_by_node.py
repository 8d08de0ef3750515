"""What each node keeps for its backward, where the specification leaves that open: as fast as memory allows.

    least      every node keeps least: a reversible one nothing, a buffered one its input; where no cut fits so, all nodes of a kind keep
               what lowers the largest share of a limit in the nearest cut
    cut        the stages that are best for what nodes keep
    fill       in these stages, nodes keep what saves most seconds for its bytes times the micro-batches in flight, as long as the memory
               model says that it fits
    again      from the cut on, until nothing changes

The fastest placement that was found is taken.

Decision: nodes of delayed stages keep no graphs, since these would need the parameters of their forwards, unless the specification allows it;
so all choices have the parameters that the method has (`Method.mode`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from math import inf
from typing import get_args

from attrs import define, evolve, field, frozen

from petra_graph.compiler.cut_search import fits, held_bytes, shares
from petra_graph.compiler.durations import node_seconds
from petra_graph.compiler.node_table import buffer_bytes, version_bytes
from petra_graph.compiler.placement_search import resolved_placement
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.compiler.prediction import Prediction
from petra_graph.compiler.simulator.steady_state import tick
from petra_graph.errors import NoFeasiblePlan
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.program.placement import Partition, Placement
from petra_graph.spec.model import BufferedKeeps, Keeps, KeepsByNode, Kind
from petra_graph.units import listed, plural, seconds

_ROUNDS = 4
"""Cuts, at most."""
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

    def place_least(self) -> Placement:
        """Return the placement of nodes that keep least, or, where that does not fit, of those that need least together with their work."""
        refused, kept = list[NoFeasiblePlan](), kept_by_kind(self.inputs.graph)
        while kept not in self.tried:
            try:
                return self._search(kept)
            except NoFeasiblePlan as error:
                refused.append(error)
            if (nearest := refused[-1].nearest) is None:
                break
            every = product(get_args(Keeps), get_args(BufferedKeeps))
            choices = [kept_by_kind(self.inputs.graph, *keeps) for keeps in every]
            kept = min(choices, key=lambda one: self._share(one, nearest))
            if self._fits(kept, nearest):
                return self._keep_stages(kept, nearest)
        raise refused[0]

    def improve(self, placement: Placement) -> None:
        """Fill memory and cut again, until nothing changes."""
        for _ in range(_ROUNDS):
            kept = self._fill_memory(placement)
            self._keep_stages(kept, placement)
            if kept in self.tried:
                return
            try:
                placement = self._search(kept)
            except NoFeasiblePlan:
                return

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
        return self._add(evolve(self.search(evolve(self.inputs, kept=kept)), kept=kept))

    def _keep_stages(self, kept: KeepsByNode, placement: Placement) -> Placement:
        """Return the stages of a placement with what nodes keep and the depths that follow, or as they are where that does not fit."""
        made = resolved_placement(evolve(self.inputs, kept=kept), Partition(stages=placement.stages))
        found = evolve(placement, schedule=made.schedule, kept=kept)
        return self._add(found) if self._fits(kept, found) else placement

    def _add(self, placement: Placement) -> Placement:
        """Add a placement, with what its nodes keep in their stages: a delayed one may be asked for a graph that it cannot keep."""
        segments = [segment for program in self.inputs.placed(placement) for segment in program.segments]
        keeps = {name: segment.keeps for segment in segments for name in segment.nodes}
        placement = evolve(placement, kept={name: keeps[name] for name in placement.kept or {}})
        self.found.append((tick(Prediction(inputs=self.inputs, placement=placement).pipeline).seconds, placement))
        return placement

    def _fill_memory(self, placement: Placement) -> KeepsByNode:
        """Return what the nodes of these stages keep if what saves most seconds for its bytes comes first, as long as it fits."""
        costs, kept = self._costs(placement), kept_by_kind(self.inputs.graph)
        if placement.kept and not self._fits(kept, placement):
            kept = placement.kept

        def saves(change: _NodeKeeps) -> float:
            return costs[change[0], kept[change[0]]].seconds - costs[change].seconds

        def worth(change: _NodeKeeps) -> tuple[float, float]:
            more = costs[change].size - costs[change[0], kept[change[0]]].size
            return saves(change) / max(more, 1.0), saves(change)

        left = sorted(costs)
        while left:
            change = max(left, key=worth)
            left.remove(change)
            if saves(change) > 0 and self._fits({**kept, change[0]: change[1]}, placement):
                kept = {**kept, change[0]: change[1]}
        return kept

    def _fits(self, kept: KeepsByNode, placement: Placement) -> bool:
        return fits(self.inputs, evolve(placement, kept=kept))

    def _share(self, kept: KeepsByNode, placement: Placement) -> float:
        """Return the largest share that a device would hold of its limit."""
        return max(shares(held_bytes(self.inputs, evolve(placement, kept=kept)), self.inputs.limits), default=inf)

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
