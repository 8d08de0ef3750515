"""The layout of the graph: no two items at one position, edges from left to right."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.report.plan.graph_svg import BOX_HEIGHT, BOX_WIDTH, COLUMNS, DummyNode, Position, layout
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


def layer(position: Position, columns: int) -> int:
    return position.band * columns + position.column


def rows_by_band(placed) -> list[int]:
    places = placed.positions.values()
    return [1 + max(place.row for place in places if place.band == band) for band in range(len(placed.tops))]


@given(graphs())
def test_no_two_items_share_a_position(graph):
    placed = layout(graph)
    assert len(set(placed.positions.values())) == len(placed.positions)
    assert {item for item in placed.positions if isinstance(item, str)} == {node["name"] for node in graph["nodes"]}


@given(graphs())
def test_edges_go_on_by_one_layer_and_have_a_position_in_each(graph):
    placed = layout(graph)
    columns = max(position.column for position in placed.positions.values()) + 1
    assert columns <= COLUMNS
    assert set(placed.paths) == {(edge["producer"], edge["consumer"]) for edge in graph["edges"]}
    for (producer, consumer), path in placed.paths.items():
        assert (path[0], path[-1]) == (producer, consumer)
        assert all(isinstance(item, DummyNode) for item in path[1:-1])
        layers = [layer(placed.positions[item], columns) for item in path]
        assert all(after == before + 1 for before, after in pairwise(layers))


@given(graphs())
def test_boxes_lie_apart_and_within_the_drawing(graph):
    placed = layout(graph)
    corners = [placed.corner(position) for item, position in placed.positions.items() if isinstance(item, str)]
    for x, y in corners:
        assert 0 <= x <= placed.width - BOX_WIDTH
        assert 0 <= y <= placed.height - BOX_HEIGHT
    for (x, y), (other_x, other_y) in combinations(corners, 2):
        assert abs(x - other_x) >= BOX_WIDTH + 20 or abs(y - other_y) >= BOX_HEIGHT + 20


@given(graphs())
def test_bands_have_room_for_the_edges_between_them(graph):
    placed = layout(graph)
    hops = [
        (placed.positions[a].band, placed.positions[b].band)
        for path in placed.paths.values()
        for a, b in pairwise(path)
    ]
    for band, (top, below) in enumerate(pairwise(placed.tops)):
        lowest = (
            max(placed.corner(position)[1] for position in placed.positions.values() if position.band == band)
            + BOX_HEIGHT
        )
        assert top < lowest
        assert below - lowest >= 5 * sum(a == band < b for a, b in hops) + 20


def test_branches():
    placed = layout(branches())
    rows = {
        item: (position.band, position.column, position.row)
        for item, position in placed.positions.items()
        if isinstance(item, str)
    }
    assert rows == {
        "stem": (0, 0, 0),
        "left.0": (0, 1, 0),
        "right.0": (0, 1, 1),
        "left.1": (0, 2, 0),
        "left.2": (0, 3, 0),
        "join": (0, 4, 0),
        "body.0": (1, 0, 0),
        "body.1": (1, 1, 0),
        "merge": (1, 2, 0),
        "head": (1, 3, 0),
    }
    assert rows_by_band(placed) == [3, 2]


@pytest.mark.parametrize(("bands", "plan"), [(1, three_stages), (3, revnet50)])
def test_a_chain_wraps_like_text(bands, plan):
    placed = layout(plan())
    assert rows_by_band(placed) == [1] * bands
    order = sorted(placed.positions, key=lambda item: (placed.positions[item].band, placed.positions[item].column))
    assert order == [node["name"] for node in plan()["nodes"]]


def test_two_hundred(two_hundred):
    assert rows_by_band(layout(two_hundred)) == [1] * 25
