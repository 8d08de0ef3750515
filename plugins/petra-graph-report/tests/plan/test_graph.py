"""Where the boxes of a graph are: apart, from left to right, wrapped like text."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from petra_graph_report.plan.graph import COLUMNS, TALL, WIDE, positions

from tests.support.plan_documents import branches, revnet50, three_stages


@st.composite
def graphs(draw):
    """Nodes that read earlier ones."""
    size = draw(st.integers(1, 40))
    reads = [draw(st.sets(st.integers(0, place - 1), max_size=3)) if place else set() for place in range(size)]
    return {
        "nodes": [{"name": f"n{place}"} for place in range(size)],
        "edges": [{"producer": f"n{a}", "consumer": f"n{b}"} for b, before in enumerate(reads) for a in sorted(before)],
    }


@given(graphs())
def test_boxes_are_apart(graph):
    placed = positions(graph)
    assert set(placed) == {node["name"] for node in graph["nodes"]}
    for one, other in combinations(placed.values(), 2):
        assert abs(one.x - other.x) >= WIDE + 20 or abs(one.y - other.y) >= TALL + 20
    assert min(one.x for one in placed.values()) > 0
    assert min(one.y - TALL for one in placed.values()) > 0


@given(graphs())
def test_edges_go_to_later_layers(graph):
    placed = positions(graph)
    for edge in graph["edges"]:
        start, end = placed[edge["producer"]], placed[edge["consumer"]]
        assert start.layer < end.layer
        assert (start.band, start.x) < (end.band, end.x) or start.band < end.band
    assert len({one.x for one in placed.values()}) <= COLUMNS


def test_branches():
    placed = positions(branches())
    rows = sorted({one.y for one in placed.values()})
    assert {name: (one.band, one.layer, rows.index(one.y)) for name, one in placed.items()} == {
        "stem": (0, 0, 0),
        "left.0": (0, 1, 0),
        "right.0": (0, 1, 1),
        "left.1": (0, 2, 0),
        "left.2": (0, 3, 0),
        "join": (0, 4, 0),
        "body.0": (1, 5, 2),
        "body.1": (1, 6, 2),
        "merge": (1, 7, 2),
        "head": (1, 8, 2),
    }


@pytest.mark.parametrize(("bands", "plan"), [(1, three_stages), (3, revnet50)])
def test_a_chain_wraps_like_text(bands, plan):
    placed = positions(plan())
    assert len({one.y for one in placed.values()}) == bands
    order = sorted(placed, key=lambda name: (placed[name].y, placed[name].x))
    assert order == [node["name"] for node in plan()["nodes"]]
