"""From tables to a graph: `repeat`, default inputs, order, one broken graph a rule; and the graph of stages over it."""

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.graph.node_graph import build_graph, distances, stage_graph
from petra_graph.spec.model import NodeSpec
from tests.support.graph_strategies import cuts, networks
from tests.support.pipelines import BRANCHES, built_graph, node, node_inputs

STEM = node("stem", "linear-stem", features=6)
REV = node("rev", "rev-mlp", hidden=7)
HEAD = node("head", "pool-linear", outputs=5)


def repeated(name: str, times: int, **more) -> NodeSpec:
    return NodeSpec(name=name, block="rev-mlp", repeat=times, options={"hidden": 7}, **more)


def inputs_of(*nodes: NodeSpec) -> dict[str, tuple[str, ...]]:
    return {name: made.inputs for name, made in built_graph(nodes).nodes.items()}


def test_repeat_makes_a_row_of_copies_of_which_the_first_reads_the_named_inputs():
    join = node("join", "add", inputs=["rev", "side", "side.0"])
    assert inputs_of(STEM, REV, repeated("side", 2, inputs=("stem",)), join, HEAD) == {
        "stem": ("input",),
        "rev": ("stem",),
        "side.0": ("stem",),
        "side.1": ("side.0",),
        "join": ("rev", "side.1", "side.0"),
        "head": ("join",),
    }
    graph = built_graph((STEM, repeated("layer", 2), HEAD))
    for name in ("layer.0", "layer.1"):
        made = graph.nodes[name]
        assert (made.path, made.block, made.options.hidden) == (("graph", "node", 1), "rev-mlp", 7)


def test_a_repeated_nodes_name_means_its_last_copy_even_before_it_is_declared():
    head = node("head", "pool-linear", inputs=["layer"], outputs=5)
    stem = node("stem", "linear-stem", inputs=["input"], features=6)
    assert inputs_of(head, stem, repeated("layer", 2))["head"] == ("layer.1",)


def test_order_puts_producers_first_and_is_else_the_declared_one():
    assert built_graph(BRANCHES).order == ("stem", "left0", "left1", "right", "join", "head")
    backwards = (
        node("head", "pool-linear", inputs=["b"], outputs=5),
        node("b", "rev-mlp", inputs=["a"], hidden=7),
        node("a", "rev-mlp", inputs=["stem"], hidden=7),
        node("stem", "linear-stem", inputs=["input"], features=6),
    )
    assert built_graph(backwards).order == ("stem", "a", "b", "head")


def messages_of(*nodes: NodeSpec) -> list[tuple[str, int]]:
    return [(problem.message, problem.path[2]) for problem in build_graph(node_inputs(nodes))[1]]


def add(name, *inputs):
    return node(name, "add", inputs=[*inputs])


INPUT_IS_TAKEN = 'a node cannot be called "input", which means the samples'
BROKEN = (
    ((STEM, REV, REV, REV, HEAD), '3 nodes are called "rev"', 3),
    ((STEM, REV, repeated("rev", 2), HEAD), '2 nodes are called "rev"', 2),
    ((STEM, repeated("input", 2), HEAD), INPUT_IS_TAKEN, 1),
    ((STEM, add("join", "stm"), HEAD), 'node "join" reads "stm", which is not a node', 1),
    ((STEM, add("join", "stem", "stem"), HEAD), 'node "join" reads "stem" 2 times', 1),
    (
        (STEM, node("down", "down-basic", kind="reversible", channels=4), HEAD),
        'node "down" has kind "reversible" but its block "down-basic" is a buffered block',
        1,
    ),
    (
        (STEM, node("rev", "rev-mlp", kind="head", hidden=7)),
        'node "rev" has kind "head" but its block "rev-mlp" is a reversible block',
        1,
    ),
    ((STEM, add("one", "stem", "two"), node("two", "add"), HEAD), "the graph has a cycle: one -> two -> one", 1),
    (
        (STEM, add("join", "stem", "input"), HEAD),
        'node "join" reads the samples, as "stem" does; let it read that node',
        1,
    ),
    ((STEM, REV), "the graph has no head node, which is where the loss is", 1),
    (
        (STEM, HEAD, node("other", "pool-linear", inputs=["stem"], outputs=5)),
        'node "other" is a second head; the first is "head"',
        2,
    ),
    ((STEM, HEAD, REV), 'node "rev" reads the head "head", whose output goes to the loss', 2),
    (
        (STEM, REV, node("head", "pool-linear", inputs=["stem"], outputs=5)),
        'the output of node "rev" never reaches the head "head"',
        1,
    ),
)


@pytest.mark.parametrize(("nodes", "message", "place"), BROKEN, ids=[message for _, message, _ in BROKEN])
def test_a_broken_rule_is_one_problem_at_its_node(nodes, message, place):
    assert messages_of(*nodes) == [(message, place)]


def test_all_problems_are_reported_at_once():
    down = node("down", "down-basic", kind="reversible", channels=4)
    assert [message for message, _ in messages_of(STEM, down, add("idle", "stem"), REV)] == [
        'node "down" has kind "reversible" but its block "down-basic" is a buffered block',
        "the graph has no head node, which is where the loss is",
    ]


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
