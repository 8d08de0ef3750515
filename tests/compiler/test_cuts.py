"""Cuts as positions: those that differ by one step, and the devices that stages may have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.compiler.cuts import Cut, CutSpace, cut_of, device_orders, named
from petra_graph.graph.node_graph import NodeGraph
from tests.support.examples import examples
from tests.support.graph_strategies import networks
from tests.support.pipelines import built_graph
from tools.bench.placements import all_cuts


def space_of(graph: NodeGraph, stages: int, together=()) -> CutSpace:
    position = {name: place for place, name in enumerate(graph.order)}
    edges = [(position[a], position[b]) for a, b in graph.digraph.edges]
    bound = [[position[name] for name in names] for names in together]
    return CutSpace(edges=edges, count=len(position), stages=stages, kinds=range(stages), together=bound)


def are_together(cut, groups) -> bool:
    return all(any(set(group) <= set(stage) for stage in cut) for group in groups)


def every_cut(graph: NodeGraph, stages: int, together=()) -> list[Cut]:
    return [
        cut_of(one, tuple(range(stages)), graph.order) for one in all_cuts(graph, stages) if are_together(one, together)
    ]


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
    cuts = every_cut(graph, stages, together)
    assert {tuple(named(cut, graph.order)) for cut in cuts} == every[stages]
    for cut in space.neighbours(data.draw(st.sampled_from(cuts))):
        assert cut in cuts


@examples(60)
@given(networks(max_body=5), st.data())
def test_a_step_away_is_another_cut(nodes, data):
    graph = built_graph(nodes)
    stages = data.draw(st.integers(1, min(4, len(graph.order))))
    space = space_of(graph, stages)
    every = every_cut(graph, stages)
    for cut in space.neighbours(data.draw(st.sampled_from(every))):
        assert cut in every


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


def test_a_device_that_is_spare_or_shared_changes_hands():
    spare = CutSpace(edges=[(0, 1)], count=2, stages=2, kinds="abc", fixed=(0, 1))
    assert [cut.hosts for cut in spare.neighbours(Cut((0, 1), (0, 2)))] == [(1, 2), (0, 1)]
    shared = CutSpace(edges=[(0, 1), (1, 2)], count=3, stages=3, kinds="ab", fixed=(0, 1, 2))
    assert [cut.hosts for cut in shared.neighbours(Cut((0, 1, 2), (0, 0, 1)))] == [(0, 1, 1)]


def test_where_the_order_is_free_unlike_devices_change_places():
    free = CutSpace(edges=[(0, 1)], count=2, stages=2, kinds="aab", fixed=(0, 1), listed=False)
    assert {cut.hosts for cut in free.neighbours(Cut((0, 1), (0, 2)))} == {(2, 0), (0, 1)}
