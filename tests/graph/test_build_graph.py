"""From tables to nodes: `repeat`, default inputs and kinds, order."""

from __future__ import annotations

from hypothesis import given

from petra_graph.graph.build_graph import build_graph
from petra_graph.spec.model import NodeSpec
from tests.support.graph_strategies import networks
from tests.support.pipelines import BRANCHES, CHAIN, SKIP, built_graph, node, node_inputs


def repeated(name: str, times: int, **more) -> NodeSpec:
    return NodeSpec(name=name, block="rev-mlp", repeat=times, options={"hidden": 7}, **more)


STEM = node("stem", "linear-stem", features=6)
HEAD = node("head", "pool-linear", outputs=5)


def inputs_of(*nodes: NodeSpec) -> dict[str, tuple[str, ...]]:
    return {name: made.inputs for name, made in built_graph(nodes).nodes.items()}


def test_a_node_reads_the_one_before_it():
    assert inputs_of(*CHAIN) == {
        "stem": ("input",),
        "rev0": ("stem",),
        "rev1": ("rev0",),
        "rev2": ("rev1",),
        "head": ("rev2",),
    }


def test_repeat_makes_a_row_of_copies():
    assert inputs_of(STEM, repeated("layer", 3), HEAD) == {
        "stem": ("input",),
        "layer.0": ("stem",),
        "layer.1": ("layer.0",),
        "layer.2": ("layer.1",),
        "head": ("layer.2",),
    }


def test_the_first_copy_alone_reads_the_named_inputs():
    assert inputs_of(
        STEM,
        node("rev", "rev-mlp", hidden=7),
        repeated("side", 2, inputs=("stem",)),
        node("join", "add", inputs=["rev", "side"]),
        HEAD,
    ) == {
        "stem": ("input",),
        "rev": ("stem",),
        "side.0": ("stem",),
        "side.1": ("side.0",),
        "join": ("rev", "side.1"),
        "head": ("join",),
    }


def test_a_repeated_nodes_name_means_its_last_copy_even_before_it_is_declared():
    head = node("head", "pool-linear", inputs=["layer"], outputs=5)
    stem = node("stem", "linear-stem", inputs=["input"], features=6)
    assert inputs_of(head, stem, repeated("layer", 2))["head"] == ("layer.1",)


def test_any_copy_can_be_read():
    join = node("join", "add", inputs=["layer", "layer.0"])
    assert inputs_of(STEM, repeated("layer", 2), join, HEAD)["join"] == ("layer.1", "layer.0")


def test_copies_keep_their_tables_place_block_and_options():
    graph = built_graph((STEM, repeated("layer", 2), HEAD))
    for name in ("layer.0", "layer.1"):
        made = graph.nodes[name]
        assert (made.path, made.block, made.options.hidden) == (("graph", "node", 1), "rev-mlp", 7)


def test_kinds_default_to_the_blocks_own():
    anchored = node("anchor", "rev-mlp", kind="buffered", hidden=7)
    graph = built_graph((STEM, repeated("layer", 1), anchored, HEAD))
    assert {name: made.kind for name, made in graph.nodes.items()} == {
        "stem": "buffered",
        "layer": "reversible",
        "anchor": "buffered",
        "head": "head",
    }


def test_a_graph_without_nodes_is_none():
    assert build_graph([]) == (None, [])


def test_a_graph_that_reads_nothing_known_is_none():
    graph, problems = build_graph(node_inputs((STEM, node("join", "add", inputs=["nobody"]), HEAD)))
    assert graph is None
    assert len(problems) == 1


def test_order_is_the_declared_one_where_it_can_be():
    assert built_graph(BRANCHES).order == ("stem", "left0", "left1", "right", "join", "head")


def test_order_puts_producers_first():
    assert built_graph(
        (
            node("head", "pool-linear", inputs=["b"], outputs=5),
            node("b", "rev-mlp", inputs=["a"], hidden=7),
            node("a", "rev-mlp", inputs=["stem"], hidden=7),
            node("stem", "linear-stem", inputs=["input"], features=6),
        )
    ).order == ("stem", "a", "b", "head")


def test_consumers_come_in_declared_order():
    graph = built_graph(SKIP)
    assert {name: graph.consumers(name) for name in graph.nodes} == {
        "stem": ("rev0",),
        "rev0": ("rev1", "join"),
        "rev1": ("join",),
        "join": ("rev2",),
        "rev2": ("head",),
        "head": (),
    }


@given(networks())
def test_order_is_topological_for_any_declared_order(nodes):
    graph = built_graph(nodes)
    place = {name: index for index, name in enumerate(graph.order)}
    assert sorted(graph.order) == sorted(graph.nodes)
    assert all(place[producer] < place[consumer] for producer, consumer in graph.digraph.edges)
