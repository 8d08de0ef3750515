"""Cutting and placing: stages, devices, distances, and every way to cut wrongly."""

from __future__ import annotations

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.compiler.lower import partition
from petra_graph.errors import Problem, SpecError
from tests.support.graph_strategies import cuts, networks
from tests.support.pipelines import BRANCHES, CHAIN, built_graph

CPU = ("cpu",)


def refused(nodes, stages) -> list[Problem]:
    with pytest.raises(SpecError) as caught:
        partition(built_graph(nodes), stages, CPU)
    return list(caught.value.problems)


@pytest.mark.parametrize(
    ("count", "devices", "expected"),
    [
        (5, ("a",), "a a a a a"),
        (5, ("a", "b"), "a a a b b"),
        (5, ("a", "b", "c"), "a a b b c"),
        (5, ("a", "b", "c", "d", "e"), "a b c d e"),
        (5, ("a", "b", "a"), "a a b b a"),
        (3, ("a", "b", "c", "d"), "a b c"),
    ],
)
def test_consecutive_stages_share_a_device(count, devices, expected):
    names = [node.name for node in CHAIN]
    stages = (*[(name,) for name in names[: count - 1]], tuple(names[count - 1 :]))
    placed = partition(built_graph(CHAIN), stages, devices).stages
    assert " ".join(stage.device for stage in placed) == expected


@given(st.data(), networks())
def test_distances_fall_along_every_edge_and_by_one_along_one(data, nodes):
    graph = built_graph(nodes)
    stages = partition(graph, data.draw(cuts(graph)), CPU).stages
    place = {name: index for index, stage in enumerate(stages) for name in stage.nodes}
    edges = {(place[a], place[b]) for a, b in graph.digraph.edges if place[a] != place[b]}
    for index, stage in enumerate(stages):
        below = [stages[reader].distance for producer, reader in edges if producer == index]
        assert stage.distance == (1 + max(below) if below else 0)
    assert [stage.distance for stage in stages].count(0) == 1
    assert nx.dag_longest_path_length(nx.DiGraph(edges)) == stages[0].distance if edges else len(stages) == 1


def test_stages_that_read_one_another():
    """Both cuts are convex, and yet each of the two stages needs the other first."""
    stages = (("stem",), ("left0", "join"), ("left1", "right"), ("head",))
    assert [problem.message for problem in refused(BRANCHES, stages)] == [
        'stage 2 reads "left1" of stage 3, a later one',
        'stage 2 reads "right" of stage 3, a later one',
    ]


def test_all_problems_of_listed_stages_are_reported_at_once():
    assert [problem.message for problem in refused(CHAIN, ((), ("stem", "x"), ("stem", "head")))] == [
        "stage 1 is empty",
        'stage 2 names "x", which is not a node',
        'node "stem" is in stages 2 and 3',
        "no stage holds rev0, rev1, rev2",
    ]
