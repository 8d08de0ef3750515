"""Cutting and placing: stages, devices, distances, and every way to cut wrongly."""

from __future__ import annotations

import attrs
import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.compiler.listed_stages import partition, per_block
from petra_graph.errors import Problem, SpecError
from tests.support.graph_strategies import cuts, networks
from tests.support.pipelines import BRANCHES, CHAIN, SKIP, built_graph

CPU = ("cpu",)


def refused(nodes, stages) -> list[Problem]:
    with pytest.raises(SpecError) as caught:
        partition(built_graph(nodes), stages, CPU)
    return list(caught.value.problems)


def test_per_block_makes_every_node_a_stage():
    assert per_block(built_graph(CHAIN)) == (("stem",), ("rev0",), ("rev1",), ("rev2",), ("head",))


def test_stages_by_hand():
    stages = partition(built_graph(CHAIN), (("stem", "rev0"), ("rev1",), ("rev2", "head")), CPU).stages
    assert [(stage.nodes, stage.device, stage.distance) for stage in stages] == [
        (("stem", "rev0"), "cpu", 2),
        (("rev1",), "cpu", 1),
        (("rev2", "head"), "cpu", 0),
    ]


def test_nodes_of_a_stage_come_in_the_datas_order():
    stages = partition(built_graph(CHAIN), (("rev0", "stem"), ("head", "rev2", "rev1")), CPU).stages
    assert [stage.nodes for stage in stages] == [("stem", "rev0"), ("rev1", "rev2", "head")]


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


def test_distance_is_the_longest_path_to_the_head():
    """BRANCHES: stem -> left0 -> left1 -> join -> head, and stem -> right -> join."""
    stages = partition(built_graph(BRANCHES), per_block(built_graph(BRANCHES)), CPU).stages
    assert {stage.nodes[0]: stage.distance for stage in stages} == {
        "stem": 4,
        "left0": 3,
        "left1": 2,
        "right": 2,
        "join": 1,
        "head": 0,
    }


def test_distance_of_a_skip_is_the_way_around():
    stages = partition(built_graph(SKIP), per_block(built_graph(SKIP)), CPU).stages
    assert [stage.distance for stage in stages] == [5, 4, 3, 2, 1, 0]


def test_distance_counts_stages_not_nodes():
    stages = partition(built_graph(BRANCHES), (("stem",), ("left0", "left1"), ("right",), ("join", "head")), CPU).stages
    assert [stage.distance for stage in stages] == [2, 1, 1, 0]


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


def test_an_empty_stage():
    assert refused(CHAIN, (("stem", "rev0", "rev1", "rev2"), (), ("head",))) == [
        Problem(message="stage 2 is empty", hint="remove it", path=("partition", "stages", 1))
    ]


def test_an_unknown_node():
    assert refused(CHAIN, (("stem", "rev0", "rev1"), ("rev2", "rev22", "head"))) == [
        Problem(
            message='stage 2 names "rev22", which is not a node',
            hint="did you mean 'rev2'? allowed: head, rev0, rev1, rev2, stem",
            path=("partition", "stages", 1),
        )
    ]


def test_a_repeated_node_is_named_by_its_copies():
    repeated = (CHAIN[0], attrs.evolve(CHAIN[1], name="rev", repeat=2), CHAIN[-1])
    assert refused(repeated, (("stem", "rev"), ("head",))) == [
        Problem(
            message='stage 1 names "rev", which is not a node',
            hint="rev is repeated: name rev.0, rev.1",
            path=("partition", "stages", 0),
        )
    ]


def test_a_node_in_two_stages():
    assert refused(CHAIN, (("stem", "rev0", "rev1"), ("rev1", "rev2", "head"))) == [
        Problem(
            message='node "rev1" is in stages 1 and 2',
            hint="every node belongs to one stage",
            path=("partition", "stages", 1),
        )
    ]


def test_a_node_twice_in_a_stage():
    assert [problem.message for problem in refused(CHAIN, (("stem", "rev0", "stem", "rev1", "rev2", "head"),))] == [
        'node "stem" is in stage 1 twice'
    ]


def test_nodes_that_no_stage_holds():
    assert refused(CHAIN, (("stem", "rev1"), ("head",))) == [
        Problem(
            message="no stage holds rev0, rev2", hint="every node belongs to one stage", path=("partition", "stages")
        )
    ]


def test_a_stage_that_reads_a_later_one():
    assert refused(CHAIN, (("rev0", "rev1"), ("stem", "rev2"), ("head",))) == [
        Problem(
            message='stage 1 reads "stem" of stage 2, a later one',
            hint="list stages in the order of the data, and cut so that none depends on a later one",
            path=("partition", "stages"),
        )
    ]


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
