"""The stage graph: the quotient of a graph of nodes by its stages.

    nodes    stem -> a -> b -> head,  stem -> c -> head      stages   {stem} {a, b} {c} {head}
    stages   1 -> 2 -> 4,  1 -> 3 -> 4                       distances to the head's stage   2, 1, 1, 0

Stages are numbered from 1 to J, as in the paper. Distances, cycles, channels, depths and orders follow from this graph.

Decision: stages are merged by `networkx.relabel_nodes`, whose mapping need not be injective, and not by
`networkx.quotient_graph`. The latter compares all pairs of stages: for 1,000 stages of three nodes in a chain it takes
6.7 s, and merging 4.5 ms, 1,500 times less (for 100 stages 95 times less).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence

import networkx as nx


def stage_graph(nodes: nx.DiGraph, stages: Sequence[Collection[Hashable]]) -> nx.DiGraph:
    """Return the quotient of `nodes` by `stages`, which hold each node once.

    Node `j` has the attribute `nodes`, the members of stage j; an edge has the attribute `edges`, the edges of `nodes`
    between the two stages, in their order.
    """
    stage_of = {name: stage for stage, names in enumerate(stages, start=1) for name in names}
    graph = nx.DiGraph()
    graph.add_nodes_from((stage, {"nodes": tuple(names)}) for stage, names in enumerate(stages, start=1))
    graph.add_edges_from(nx.relabel_nodes(nodes, stage_of).edges)
    graph.remove_edges_from(list(nx.selfloop_edges(graph)))
    for producer, consumer in nodes.edges:
        ends = stage_of[producer], stage_of[consumer]
        if graph.has_edge(*ends):
            graph.edges[ends].setdefault("edges", []).append((producer, consumer))
    return graph


def distances(stages: nx.DiGraph) -> dict[int, int]:
    """Return for each stage the longest path to the head's stage, counted in stages (the paper's J - j)."""
    generations = nx.topological_generations(stages.reverse(copy=False))
    return {stage: distance for distance, generation in enumerate(generations) for stage in generation}


def growing_edges(stages: nx.DiGraph, depths: Mapping[int, int]) -> list[tuple[int, int]]:
    """Return the edges along which depths grow, sorted: their consumers would wait for ever."""
    return sorted((producer, consumer) for producer, consumer in stages.edges if depths[consumer] > depths[producer])
