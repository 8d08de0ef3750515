"""What every graph must keep: one broken graph a rule, and random graphs that keep or break them all."""

from __future__ import annotations

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.errors import Problem
from petra_graph.graph import build_graph as graph_rules
from petra_graph.graph.build_graph import NodeInput, build_graph
from petra_graph.spec.model import NodeSpec
from tests.support.graph_strategies import networks
from tests.support.pipelines import BRANCHES, CHAIN, GRAPHS, built_graph, node, node_inputs


def problems_of(*nodes: NodeSpec) -> list[Problem]:
    return build_graph(node_inputs(nodes))[1]


STEM = node("stem", "linear-stem", features=6)
REV = node("rev", "rev-mlp", hidden=7)
HEAD = node("head", "pool-linear", outputs=5)


def test_every_rule_is_applied():
    named = {
        name
        for name, rule in vars(graph_rules).items()
        if getattr(rule, "__annotations__", {}).get("return") == "Iterator[Problem]"
    }
    assert {rule.__name__ for rule in (*graph_rules.WIRING, *graph_rules.GRAPH, *graph_rules.OUTPUTS)} == named


@pytest.mark.parametrize("graph", GRAPHS)
def test_sound_graphs_have_no_problem(graph):
    assert problems_of(*GRAPHS[graph]) == []


def test_names_are_unique():
    assert problems_of(STEM, REV, REV, REV, HEAD) == [
        Problem(
            message='3 nodes are called "rev"',
            hint="names must be unique; `repeat = n` makes NAME.0 to NAME.(n-1)",
            path=("graph", "node", 3, "name"),
        )
    ]


def test_two_repeated_nodes_of_one_name_are_one_problem():
    """There were three: the name, and each of its copies."""
    repeated = NodeSpec(name="rev", block="rev-mlp", repeat=2, options={"hidden": 7})
    (problem,) = problems_of(STEM, repeated, repeated, HEAD)
    assert (problem.message, problem.path) == ('2 nodes are called "rev.0"', ("graph", "node", 2, "name"))


def test_no_node_takes_the_inputs_name():
    problems = problems_of(STEM, node("input", "rev-mlp", hidden=7), HEAD)
    assert problems[0] == Problem(
        message='a node cannot be called "input", which means the samples',
        hint="choose another name",
        path=("graph", "node", 1, "name"),
    )


def test_repeated_nodes_share_no_name_with_others():
    """A repeated node's name, where read, means its last copy; another node of that name could never be read."""
    repeated = NodeSpec(name="rev", block="rev-mlp", repeat=2, options={"hidden": 7})
    assert problems_of(STEM, REV, repeated, HEAD) == [
        Problem(
            message='2 nodes are called "rev"',
            hint="names must be unique; `repeat = n` makes NAME.0 to NAME.(n-1)",
            path=("graph", "node", 2, "name"),
        )
    ]


def test_no_repeated_node_takes_the_inputs_name():
    repeated = NodeSpec(name="input", block="rev-mlp", repeat=2, options={"hidden": 7})
    assert problems_of(STEM, repeated, HEAD) == [
        Problem(
            message='a node cannot be called "input", which means the samples',
            hint="choose another name",
            path=("graph", "node", 1, "name"),
        )
    ]


def test_inputs_exist():
    assert problems_of(STEM, node("join", "add", inputs=["stm"]), HEAD) == [
        Problem(
            message='node "join" reads "stm", which is not a node',
            hint="did you mean 'stem'?",
            path=("graph", "node", 1, "inputs"),
        )
    ]


def test_inputs_exist_and_nothing_is_alike():
    assert problems_of(STEM, node("join", "add", inputs=["xyz"]), HEAD)[0].hint == "nodes: input, stem, join, head"


def test_an_input_is_named_once():
    assert problems_of(STEM, node("join", "add", inputs=["stem", "stem"]), HEAD) == [
        Problem(
            message='node "join" reads "stem" 2 times',
            hint="name each input once; a block can use a stream as often as it likes",
            path=("graph", "node", 1, "inputs"),
        )
    ]


def test_reversible_nodes_need_reversible_blocks():
    down = node("down", "down-basic", kind="reversible", channels=4)
    assert problems_of(STEM, down, HEAD) == [
        Problem(
            message='node "down" is reversible but its block "down-basic" has no inverse',
            hint='set kind = "buffered", or use a reversible block (`petra-graph list blocks` shows them)',
            path=("graph", "node", 1, "kind"),
        )
    ]


def test_head_blocks_are_head_nodes_and_no_others_are():
    last = node("head", "pool-linear", kind="buffered", outputs=5)
    other = node("rev", "rev-mlp", kind="head", hidden=7)
    assert problems_of(STEM, other, last)[:2] == [
        Problem(
            message='node "rev" has kind "head" but its block "rev-mlp" is a reversible block',
            hint='leave out `kind`, or set kind = "reversible"',
            path=("graph", "node", 1, "kind"),
        ),
        Problem(
            message='node "head" has kind "buffered" but its block "pool-linear" is a head block',
            hint='leave out `kind`, or set kind = "head"',
            path=("graph", "node", 2, "kind"),
        ),
    ]


def test_a_reversible_block_may_be_buffered():
    assert problems_of(STEM, node("rev", "rev-mlp", kind="buffered", hidden=7), HEAD) == []


def test_the_kind_of_an_unknown_block_is_believed():
    tables = node_inputs((STEM, REV, HEAD))
    local = NodeSpec(name="rev", block="mine:Block", kind="reversible")
    tables[1] = NodeInput(spec=local, plugin=None, options=None, path=("graph", "node", 1))
    graph, problems = build_graph(tables)
    assert problems == []
    assert graph.nodes["rev"].kind == "reversible"


def test_is_acyclic():
    one = node("one", "add", inputs=["stem", "two"])
    assert problems_of(STEM, one, node("two", "add"), HEAD) == [
        Problem(
            message="the graph has a cycle: one -> two -> one",
            hint="a node can only read nodes that do not depend on it",
            path=("graph", "node", 1, "inputs"),
        )
    ]


def test_a_node_that_reads_itself_is_a_cycle():
    problems = problems_of(STEM, node("one", "add", inputs=["stem", "one"]), HEAD)
    assert [problem.message for problem in problems] == ["the graph has a cycle: one -> one"]


def test_some_node_reads_the_samples():
    problems = problems_of(node("stem", "linear-stem", inputs=["head"], features=6), HEAD)
    assert (
        Problem(message="no node reads the samples", hint='give one node inputs = ["input"]', path=("graph",))
        in problems
    )


def test_only_one_reads_the_samples():
    assert problems_of(STEM, node("join", "add", inputs=["stem", "input"]), HEAD) == [
        Problem(
            message='node "join" reads the samples, as "stem" does',
            hint="let one node read the samples, and the others read that node",
            path=("graph", "node", 1, "inputs"),
        )
    ]


def test_every_node_reads_something():
    idle = node("idle", "add", inputs=[])
    assert problems_of(STEM, idle, node("join", "add", inputs=["stem", "idle"]), HEAD) == [
        Problem(
            message='node "idle" reads nothing',
            hint="leave out `inputs` to read the node before it",
            path=("graph", "node", 1, "inputs"),
        )
    ]


def test_there_is_a_head():
    assert problems_of(STEM, REV) == [
        Problem(
            message="the graph has no head node, which is where the loss is",
            hint='end with a head block, such as block = "pool-linear"',
            path=("graph", "node", 1),
        )
    ]


def test_there_is_no_second_head():
    assert problems_of(STEM, HEAD, node("other", "pool-linear", inputs=["stem"], outputs=5)) == [
        Problem(
            message='node "other" is a second head; the first is "head"',
            hint="a graph has one head",
            path=("graph", "node", 2),
        )
    ]


def test_no_node_reads_the_head():
    assert problems_of(STEM, HEAD, REV) == [
        Problem(
            message='node "rev" reads the head "head", whose output goes to the loss',
            hint="put the head last",
            path=("graph", "node", 2, "inputs"),
        ),
    ]


def test_every_node_counts():
    assert problems_of(STEM, REV, node("head", "pool-linear", inputs=["stem"], outputs=5)) == [
        Problem(
            message='the output of node "rev" never reaches the head "head"',
            hint="let a later node name it in `inputs`, or remove it",
            path=("graph", "node", 1),
        )
    ]


@given(networks())
def test_random_graphs_keep_the_rules(nodes):
    graph = built_graph(nodes)
    assert nx.is_directed_acyclic_graph(graph.digraph)
    assert (graph.order[0], graph.head) == ("stem", "head")
    assert set(graph.digraph) == {graph.head} | nx.ancestors(graph.digraph, graph.head)


@given(st.data(), networks())
def test_a_back_edge_is_the_only_problem_of_a_random_graph(data, nodes):
    graph = built_graph(nodes)
    joins = [index for index, table in enumerate(nodes) if table.block == "add"]
    if not joins:
        return
    index = data.draw(st.sampled_from(joins))
    name = nodes[index].name
    later = sorted(nx.descendants(graph.digraph, name) - {"head"} | {name})
    reads = (*nodes[index].inputs, data.draw(st.sampled_from(later)))
    broken = [*nodes]
    broken[index] = node(name, "add", inputs=reads)
    (problem,) = problems_of(*broken)
    assert problem.message.startswith("the graph has a cycle: ")


@given(st.data(), networks())
def test_a_node_without_consumers_is_the_only_problem_of_a_random_graph(data, nodes):
    read = data.draw(st.sampled_from([table.name for table in nodes if table.name != "head"]))
    place = data.draw(st.integers(0, len(nodes) - 1))
    idle = node("idle", "add", inputs=[read])
    (problem,) = problems_of(*nodes[:place], idle, *nodes[place:])
    assert problem.message == 'the output of node "idle" never reaches the head "head"'


@given(st.data(), networks())
def test_a_second_node_of_a_name_stops_a_random_graph(data, nodes):
    twin = data.draw(st.sampled_from(nodes))
    graph, problems = build_graph(node_inputs((*nodes, twin)))
    assert graph is None
    assert [problem.message for problem in problems] == [f'2 nodes are called "{twin.name}"']


def test_all_problems_are_reported_at_once():
    messages = [
        problem.message
        for problem in problems_of(
            STEM, node("down", "down-basic", kind="reversible", channels=4), node("idle", "add", inputs=["stem"]), REV
        )
    ]
    assert messages == [
        'node "down" is reversible but its block "down-basic" has no inverse',
        "the graph has no head node, which is where the loss is",
    ]
    assert problems_of(*CHAIN, *BRANCHES)
