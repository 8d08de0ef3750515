"""What each node keeps for its backward, where the specification leaves that open: as much as memory allows, where that saves most seconds.

Decision: nodes of delayed stages keep no graphs, since these would need the parameters of their forwards, unless the specification allows it;
so all choices have the parameters that the method has (`Method.mode`).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import NamedTuple, get_args

from attrs import evolve

from petra_graph.compiler.durations import node_seconds
from petra_graph.compiler.node_table import buffer_bytes, version_bytes
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.program.placement import Placement
from petra_graph.spec.model import BufferedKeeps, Keeps, KeepsByNode, Kind


def kept_by_kind(graph: NodeGraph, reversible: Keeps = "nothing", buffered: BufferedKeeps = "input") -> KeepsByNode:
    """Return the same for all nodes of a kind; by default what holds least beside the work."""
    own: Mapping[Kind, Keeps] = {"reversible": reversible, "buffered": buffered}
    return {name: own[graph.nodes[name].kind] for name in graph.order if name != graph.head}


def choices_by_kind(graph: NodeGraph) -> list[KeepsByNode]:
    """Return all that the nodes of each kind may keep, the least first."""
    return [kept_by_kind(graph, *keeps) for keeps in product(get_args(Keeps), get_args(BufferedKeeps))]


class _Cost(NamedTuple):
    seconds: float
    """Of a micro-batch."""
    size: float
    """Bytes of all micro-batches in flight, about."""


def fill_memory(inputs: PlannerInputs, placement: Placement) -> KeepsByNode:
    """Return what the nodes of these stages keep if what saves most seconds for its bytes comes first, as long as it fits."""
    costs, kept = _costs(inputs, placement), kept_by_kind(inputs.graph)
    if placement.kept and not inputs.fits(evolve(placement, kept=kept)):
        kept = placement.kept
    left = sorted(costs)
    while left:
        worth = {}
        for name, keeps in left:
            now, then = costs[name, kept[name]], costs[name, keeps]
            saved = now.seconds - then.seconds
            worth[name, keeps] = saved / max(then.size - now.size, 1.0), saved
        name, keeps = max(left, key=worth.__getitem__)
        left.remove((name, keeps))
        more = {**kept, name: keeps}
        if worth[name, keeps][1] > 0 and inputs.fits(evolve(placement, kept=more)):
            kept = more
    return kept


def _costs(inputs: PlannerInputs, placement: Placement) -> Mapping[tuple[str, Keeps], _Cost]:
    """Return the costs of all that each node may keep in these stages."""
    found = {}
    for kept in choices_by_kind(inputs.graph):
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
