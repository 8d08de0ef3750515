"""The stage graph is networkx's own quotient, and distances and depths follow from it."""

from __future__ import annotations

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.graph.node_graph import distances, growing_edges, stage_graph
from tests.support.graph_strategies import cuts, networks
from tests.support.pipelines import built_graph

NODES = nx.DiGraph([("stem", "a"), ("a", "b"), ("b", "head"), ("stem", "c"), ("c", "head")])
STAGES = (("stem",), ("a", "b"), ("c",), ("head",))


def test_the_docstrings_graph():
    graph = stage_graph(NODES, STAGES)
    assert dict(graph.nodes(data="nodes")) == dict(enumerate(STAGES, start=1))
    assert list(graph.edges(data="edges")) == [
        (1, 2, [("stem", "a")]),
        (1, 3, [("stem", "c")]),
        (2, 4, [("b", "head")]),
        (3, 4, [("c", "head")]),
    ]
    assert distances(graph) == {1: 2, 2: 1, 3: 1, 4: 0}
    assert growing_edges(graph, {1: 3, 2: 2, 3: 4, 4: 3}) == [(1, 3), (2, 4)]


@given(st.data(), networks())
def test_it_is_the_quotient(data, nodes):
    graph = built_graph(nodes)
    stages = data.draw(cuts(graph))
    found = stage_graph(graph.digraph, stages)
    expected = nx.quotient_graph(graph.digraph, list(map(set, stages)), relabel=True, create_using=nx.DiGraph)
    assert set(found.edges) == {(a + 1, b + 1) for a, b in expected.edges}
    crossing = [edge for _, _, edges in found.edges(data="edges") for edge in edges]
    inside = [edge for names in stages for edge in graph.digraph.subgraph(names).edges]
    assert sorted([*crossing, *inside]) == sorted(graph.digraph.edges)


@given(st.data(), networks())
def test_distances_fall_along_every_edge_and_by_one_along_one(data, nodes):
    graph = built_graph(nodes)
    found = stage_graph(graph.digraph, data.draw(cuts(graph)))
    distance = distances(found)
    for stage in found:
        assert distance[stage] == max((1 + distance[reader] for reader in found.successors(stage)), default=0)
    assert max(distance.values()) == nx.dag_longest_path_length(found)
