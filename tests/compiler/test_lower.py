"""From a partition to programs: segments, what they keep, which messages stages return; and that any of them trains."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from petra_graph.compiler.lower import Lowering, partition, per_block
from petra_graph.compiler.spec_checks import check_depths
from petra_graph.errors import SpecError
from petra_graph.program.channels import Edge
from petra_graph.program.method import METHODS
from petra_graph.program.stage_program import Partition, Stage, StageProgram
from tests.support.graph_strategies import cuts, networks
from tests.support.pipelines import (
    BRANCHES,
    CHAIN,
    SKIP,
    batches,
    built_graph,
    message_types,
    node,
    pipeline,
    plain_network,
    relative_error,
)

ONE_GRADIENT = 1e-12


def programs(nodes, stages=None, *, method="petra", schedule="1f1b", **kept) -> tuple[StageProgram, ...]:
    graph = built_graph(nodes)
    messages = message_types(dict.fromkeys(graph.nodes, 2))
    made = partition(graph, stages or per_block(graph), ("cpu",))
    lowering = Lowering(graph=graph, method=METHODS[method], accumulation=3, messages=messages, **kept)
    return lowering.programs(made, schedule)


def segments(nodes, stages=None, **more) -> list[tuple[str, ...]]:
    return [segment.nodes for program in programs(nodes, stages, **more) for segment in program.segments]


def activation_from(nodes, stages=None) -> dict[str, str | None]:
    return {
        segment.nodes[-1]: segment.activation_from and segment.activation_from.consumer
        for program in programs(nodes, stages)
        for segment in program.segments
    }


def returning(nodes, stages=None) -> set[Edge]:
    return {
        entry.edge
        for program in programs(nodes, stages)
        for segment in program.segments
        for entry in segment.inputs
        if entry.returns_activation
    }


STEM = node("stem", "linear-stem", features=6)
HEAD = node("head", "pool-linear", outputs=5)


def anchor(name, inputs=None):
    return node(name, "rev-mlp", kind="buffered", inputs=inputs, hidden=7)


def rev(name, inputs=None):
    return node(name, "rev-mlp", inputs=inputs, hidden=7)


def test_a_run_of_buffered_nodes_is_one_segment_and_ends_where_something_leaves():
    nodes = (STEM, anchor("a"), anchor("b"), rev("r"), HEAD)
    assert segments(nodes, (("stem", "a", "b", "r", "head"),)) == [("stem", "a", "b"), ("r",), ("head",)]
    nodes = (STEM, anchor("a"), anchor("b"), node("join", "add", inputs=["a", "b"]), HEAD)
    assert segments(nodes, (("stem", "a", "b", "join", "head"),)) == [("stem", "a"), ("b",), ("join",), ("head",)]


def test_only_reconstructing_nodes_need_their_activation():
    assert activation_from(CHAIN) == {"stem": None, "rev0": "rev1", "rev1": "rev2", "rev2": "head", "head": None}
    assert returning(CHAIN) == {Edge("rev0", "rev1"), Edge("rev1", "rev2"), Edge("rev2", "head")}


def test_the_activation_comes_from_the_first_consumer_that_stores_it():
    """SKIP: rev0 is read by rev1, which reconstructs, and by join, which has stored what it read."""
    assert activation_from(SKIP)["rev0"] == "join"
    assert returning(SKIP) == {Edge("rev0", "join"), Edge("rev1", "join"), Edge("rev2", "head")}


@given(st.data(), networks())
def test_every_edge_is_sent_by_one_stage_and_received_by_one(data, nodes):
    graph = built_graph(nodes)
    made = programs(nodes, data.draw(cuts(graph)))
    sent = [edge for program in made for edge in program.sends]
    received = [edge for program in made for edge in program.receives]
    assert sorted([Edge("input", "stem"), *sent]) == sorted(received)
    assert len(set(received)) == len(received)
    assert sorted(name for program in made for name in program.nodes) == sorted(graph.nodes)


@given(st.data(), networks(max_body=5))
def test_any_graph_under_any_cut_and_schedule_gives_the_plain_gradient(data, nodes):
    """With learning rate 0 no delay matters; every stage must go on, and every gradient must be autograd's."""
    graph = built_graph(nodes)
    stages = data.draw(cuts(graph))
    schedule = data.draw(st.sampled_from(["lockstep", "1f1b", "sequential"]))
    micro_batches = batches((4,), 5, size=2)
    built = pipeline(nodes, (4,), schedule=schedule, stages=stages, accumulation=5, rate=lambda _: 0.0)
    modules, forward = plain_network(built)
    found = {}
    for executor in built.executors:
        keep_gradients(executor, found)
    assert len(built.train(micro_batches)) == 5
    for x, target in micro_batches:
        (cross_entropy(forward(x), target) / 5).backward()
    expected = {f"{name}/{key}": p.grad for name, module in modules.items() for key, p in module.named_parameters()}
    assert relative_error(found, expected) < ONE_GRADIENT


def keep_gradients(executor, found: dict[str, torch.Tensor]) -> None:
    step = executor.updater.step

    def keeping(norm=None):
        executor.updater.average()
        for name, module in executor.modules.items():
            found.update({f"{name}/{key}": p.grad.clone() for key, p in module.named_parameters()})
        step(norm)

    executor.updater.step = keeping


def modes(nodes, stages=None, **more) -> dict[tuple[str, ...], tuple[str, str]]:
    found = (segment for program in programs(nodes, stages, **more) for segment in program.segments)
    return {segment.nodes: (segment.keeps, segment.backward) for segment in found}


ANCHORED = (STEM, anchor("first"), anchor("second"), rev("third"), HEAD)
TWO = (("stem", "first"), ("second", "third", "head"))


def test_what_single_nodes_keep():
    kept = {"first": "graph", "second": "graph", "third": "input"}
    assert modes(ANCHORED, TWO, kept=kept) == {
        ("stem", "first"): ("input", "current"),  # delayed: the graph would have older parameters
        ("second",): ("graph", "current"),
        ("third",): ("input", "current"),
        ("head",): ("input", "current"),
    }
    assert modes(ANCHORED, TWO, kept=kept, allow_stored=True) == {
        ("stem",): ("input", "current"),  # nodes that keep different things are no segment
        ("first",): ("graph", "stored"),
        ("second",): ("graph", "current"),
        ("third",): ("input", "current"),
        ("head",): ("input", "current"),
    }


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


def test_stages_that_read_one_another():
    """Both cuts are convex, and yet each of the two stages needs the other first."""
    stages = (("stem",), ("left0", "join"), ("left1", "right"), ("head",))
    with pytest.raises(SpecError) as caught:
        partition(built_graph(BRANCHES), stages, ("cpu",))
    assert [problem.message for problem in caught.value.problems] == [
        'stage 2 reads "left1" of stage 3, a later one',
        'stage 2 reads "right" of stage 3, a later one',
    ]


def test_depths_are_compared_along_edges_not_in_the_order_of_the_list():
    """The right branch is shorter than the left one, so its stage runs fewer forwards ahead than the one listed next."""
    forked = built_graph(BRANCHES)
    distances = zip(forked.order, (4, 3, 2, 2, 1, 0), strict=True)
    stages = tuple(Stage(nodes=(name,), device="cpu", distance=distance) for name, distance in distances)
    check_depths((5, 4, 3, 3, 2, 1), forked, Partition(stages=stages))
    check_depths((5, 4, 3, 2, 2, 1), forked, Partition(stages=stages))
