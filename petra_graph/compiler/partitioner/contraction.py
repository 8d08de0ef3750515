"""Items that every cut has in one stage, as one item.

A group may have its own buffers and working set only as estimates: an item that stands behind another one of its group and joins it stores
nothing, and the group does one operation at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx
from attrs import evolve

from petra_graph.compiler.partitioner.problem import Item, PartitionProblem


def contracted(problem: PartitionProblem, groups: Sequence[Sequence[str]]) -> PartitionProblem:
    """Return the problem in which each group is one item, with the name of its first.

    Args:
        groups: items by name; groups have no item in common, and do not read one another in a circle.
    """
    if not groups:
        return problem
    first = {name: group[0] for group in groups for name in group}
    merged = [first.get(item.name, item.name) for item in problem.items]
    edges = [
        evolve(edge, producer=merged[producer], consumer=merged[consumer])
        for edge, (producer, consumer) in zip(problem.edges, problem.ends, strict=True)
        if merged[producer] != merged[consumer]
    ]
    graph = nx.DiGraph()
    graph.add_nodes_from(merged)
    graph.add_edges_from((edge.producer, edge.consumer) for edge in edges)
    members: dict[str, list[int]] = {
        name: [] for name in nx.lexicographical_topological_sort(graph, key=problem.index.__getitem__)
    }
    for place, name in enumerate(merged):
        members[name].append(place)
    devices = [
        evolve(device, item_seconds=tuple(sum(seconds[one] for one in places) for places in members.values()))
        for device, seconds in zip(problem.devices, problem.device_seconds, strict=True)
    ]
    return evolve(problem, items=[_one(problem, places) for places in members.values()], edges=edges, devices=devices)


def _one(problem: PartitionProblem, places: Sequence[int]) -> Item:
    if len(places) == 1:
        return problem.items[places[0]]
    items = [problem.items[place] for place in places]
    return Item(
        name=items[0].name,
        seconds=sum(item.seconds for item in items),
        resident_bytes=sum(item.resident_bytes for item in items),
        buffer_bytes=sum(problem.items[place].buffer_bytes for place in places if problem.joined[place] not in places),
        version_bytes=sum(item.version_bytes for item in items),
        working_bytes=max(item.working_bytes for item in items),
    )
