"""Cuts as positions: all of them, those that differ by one step, and the devices that stages may have."""

from __future__ import annotations

from itertools import count, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.compiler.cuts import Account, Cut, CutSpace, OutOfSteps, device_orders, named, spread
from petra_graph.graph.node_graph import NodeGraph
from tests.support.examples import examples
from tests.support.graph_strategies import networks
from tests.support.pipelines import built_graph
from tools.bench.placements import all_cuts

CHAIN = CutSpace(edges=[(0, 1), (1, 2), (2, 3)], count=4, stages=2, kinds="ab", orders=[(0, 1)])


def space_of(graph: NodeGraph, stages: int, together=()) -> CutSpace:
    position = {name: place for place, name in enumerate(graph.order)}
    edges = [(position[a], position[b]) for a, b in graph.digraph.edges]
    bound = [[position[name] for name in names] for names in together]
    return CutSpace(edges=edges, count=len(position), stages=stages, kinds=range(stages), orders=None, together=bound)


def are_together(cut, groups) -> bool:
    return all(any(set(group) <= set(stage) for stage in cut) for group in groups)


def accounts(*seconds: float, devices: int = 2) -> list[Account]:
    return [Account(seconds, seconds, 0.0)] * devices


def test_the_cuts_of_a_chain():
    found = list(CHAIN.below((0, 1), accounts(1, 1, 1, 1), 10.0, count()))
    assert [cut.stages for cut in found] == [(0, 0, 0, 1), (0, 0, 1, 1), (0, 1, 1, 1)]
    assert named(found[0], ["stem", "a", "b", "head"]) == [("stem", "a", "b"), ("head",)]


def test_cuts_whose_device_works_as_long_are_left_out():
    assert [cut.stages for cut in CHAIN.below((0, 1), accounts(1, 1, 1, 1), 3.0, count())] == [(0, 0, 1, 1)]


@examples(60)
@given(networks(max_body=5), st.integers(1, 4))
def test_every_acyclic_cut_is_there_once(nodes, stages):
    graph = built_graph(nodes)
    stages = min(stages, len(graph.order))
    space = space_of(graph, stages)
    seconds = accounts(*[1.0] * space.count, devices=stages)
    found = [
        tuple(named(cut, graph.order)) for cut in space.below(tuple(range(stages)), seconds, float("inf"), count())
    ]
    assert len(set(found)) == len(found)
    assert set(found) == set(all_cuts(graph, stages))


@examples(60)
@given(networks(max_body=5), st.data())
def test_nodes_that_are_kept_together_are_in_one_stage_of_every_cut_and_of_no_fewer_cuts(nodes, data):
    graph = built_graph(nodes)
    groups = data.draw(
        st.lists(st.lists(st.sampled_from(graph.order), min_size=2, max_size=3, unique=True), max_size=2)
    )
    together = graph.inseparable(groups)
    every = {stages: {cut for cut in all_cuts(graph, stages) if are_together(cut, groups)} for stages in range(1, 5)}
    assert max(stages for stages, cuts in every.items() if cuts) == min(graph.most_stages(together), 4)
    stages = data.draw(st.integers(1, min(4, graph.most_stages(together))))
    assert all(are_together(cut, together) for cut in every[stages])
    space = space_of(graph, stages, together)
    seconds = accounts(*[1.0] * space.count, devices=stages)
    cuts = list(space.below(tuple(range(stages)), seconds, float("inf"), count()))
    assert {tuple(named(cut, graph.order)) for cut in cuts} == every[stages]
    for cut in space.neighbours(data.draw(st.sampled_from(cuts))):
        assert cut in cuts


@examples(60)
@given(networks(max_body=5), st.data())
def test_a_step_away_is_another_cut(nodes, data):
    graph = built_graph(nodes)
    stages = data.draw(st.integers(1, min(4, len(graph.order))))
    space = space_of(graph, stages)
    seconds = accounts(*[1.0] * space.count, devices=stages)
    every = list(space.below(tuple(range(stages)), seconds, float("inf"), count()))
    for cut in space.neighbours(data.draw(st.sampled_from(every))):
        assert cut in every


def test_steps_and_nodes_run_out():
    with pytest.raises(OutOfSteps):
        list(CHAIN.below((0, 1), accounts(1, 1, 1, 1), 10.0, iter(range(3))))
    long = CutSpace(edges=[(node, node + 1) for node in range(999)], count=1000, stages=2, kinds="ab", orders=[(0, 1)])
    with pytest.raises(OutOfSteps):
        list(long.below((0, 1), accounts(*[1.0] * 1000), 1e9, count()))


@pytest.mark.parametrize(
    ("kinds", "used", "listed", "expected"),
    [
        ("aaa", 2, True, [(0, 1)]),
        ("abb", 2, True, [(0, 1), (1, 2)]),
        ("aba", 2, True, [(0, 1), (0, 2), (1, 2)]),
        ("aaa", 2, False, [(0, 1)]),
        ("abb", 2, False, [(0, 1), (1, 0), (1, 2)]),
        ("aba", 3, False, [(0, 1, 2), (0, 2, 1), (1, 0, 2)]),
    ],
)
def test_orders_of_devices(kinds, used, listed, expected):
    """Devices of one kind are interchangeable."""
    assert list(device_orders(kinds, used, listed=listed)) == expected


def test_stages_of_devices():
    assert list(spread((1, 0), 3)) == [(1, 0, 0), (1, 1, 0)]
    assert list(spread((2, 0), 2)) == [(2, 0)]


def test_a_device_that_is_spare_or_shared_changes_hands():
    spare = CutSpace(edges=[(0, 1)], count=2, stages=2, kinds="abc", fixed=(0, 1), orders=None)
    assert [cut.hosts for cut in spare.neighbours(Cut((0, 1), (0, 2)))] == [(1, 2), (0, 1)]
    shared = CutSpace(edges=[(0, 1), (1, 2)], count=3, stages=3, kinds="ab", fixed=(0, 1, 2), orders=None)
    assert [cut.hosts for cut in shared.neighbours(Cut((0, 1, 2), (0, 0, 1)))] == [(0, 1, 1)]


def test_where_the_order_is_free_unlike_devices_change_places():
    free = CutSpace(edges=[(0, 1)], count=2, stages=2, kinds="aab", fixed=(0, 1), orders=None, listed=False)
    assert {cut.hosts for cut in free.neighbours(Cut((0, 1), (0, 2)))} == {(2, 0), (0, 1)}


def test_no_neighbour_puts_stages_apart_on_one_device():
    """Three stages on devices 0, 3 and 2 had a neighbour on 2, 3 and 2: two devices, where there are four."""
    space = CutSpace(
        edges=[(0, 1), (1, 2)], count=3, stages=3, kinds="abcd", orders=None, listed=False, fixed=(0, 1, 2)
    )
    for order in permutations(range(4), 3):
        assert all(len(set(cut.hosts)) == 3 for cut in space.neighbours(Cut((0, 1, 2), order)))
