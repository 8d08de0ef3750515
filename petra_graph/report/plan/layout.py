"""Positions for the graph's nodes: in layers from left to right, wrapped into bands as text into lines.

    band 0   stem ── left.0 ── left.1 ──┐         A node's layer is the length of the longest path to it. An edge that
               ├──── right.0 ───·───────┤         skips layers has a dummy node in each (the dots), so that no edge
               └───────·────────·──────┐│         crosses a box and no two boxes share a position.
    band 1   ┌─ join ── merge ── head  ││
             ...

Layers and dummy nodes are those of Sugiyama, Tagawa and Toda (1981).

Decision: a layout of our own. Most plans are chains, and chains want wrapping, which graph drawers do not do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import networkx as nx
from attrs import frozen

from petra_graph.program.plan_document import Document

COLUMNS = 8
BOX_WIDTH, BOX_HEIGHT = 106, 40
PITCH_X, PITCH_Y = 152, 84
PAD, LABEL, TRACK = 7, 15, 5
"""Around a box's ground; above it, for the stage's name; from an edge that goes on to the next band to another."""
_MARGIN = 14


class DummyNode(NamedTuple):
    """A position that an edge takes up in a layer between its ends."""

    producer: str
    consumer: str
    layer: int


Item = str | DummyNode
"""A node, by name, or an edge's dummy node."""


class Position(NamedTuple):
    """A position in the drawing."""

    band: int
    row: int
    column: int


@frozen(kw_only=True)
class Layout:
    """The positions of all nodes, the edges between them, and their coordinates in pixels."""

    positions: Mapping[Item, Position]
    paths: Mapping[tuple[str, str], Sequence[Item]]
    """An edge's producer, dummy nodes and consumer."""
    tops: Sequence[float]
    """Each band's."""
    left: float
    """Of the first column."""
    right: float
    """Of the last column's boxes."""
    width: float
    height: float

    def corner(self, position: Position) -> tuple[float, float]:
        """Return a box's upper left corner."""
        return self.left + position.column * PITCH_X, self.tops[position.band] + position.row * PITCH_Y

    def middle(self, position: Position) -> float:
        """Return the height at which edges enter and leave a box."""
        return self.corner(position)[1] + BOX_HEIGHT / 2


def layout(document: Document) -> Layout:
    """Place a plan's nodes, at most COLUMNS layers to a band, the bands about equally long.

    Bands have room between them for the edges that go on from one to the next.
    """
    graph = nx.DiGraph()
    graph.add_nodes_from(node["name"] for node in document["nodes"])
    graph.add_edges_from((edge["producer"], edge["consumer"]) for edge in document["edges"])
    layer_of = {name: layer for layer, names in enumerate(nx.topological_generations(graph)) for name in names}
    paths = {
        (a, b): [a, *(DummyNode(a, b, layer) for layer in range(layer_of[a] + 1, layer_of[b])), b]
        for a, b in graph.edges
    }
    positions = _positions(graph, paths)
    bands = range(1 + max(position.band for position in positions.values()))
    hops = [(positions[a].band, positions[b].band) for path in paths.values() for a, b in pairwise(path)]
    wrapping = [sum(a == band < b for a, b in hops) for band in bands]
    left = _MARGIN + PAD + TRACK * max(wrapping)
    right = left + max(position.column for position in positions.values()) * PITCH_X + BOX_WIDTH
    tops = [float(LABEL + PAD)]
    for band in bands:
        rows = 1 + max(position.row for position in positions.values() if position.band == band)
        tops.append(tops[-1] + rows * PITCH_Y + TRACK * wrapping[band])
    height = tops.pop() - PITCH_Y + BOX_HEIGHT + 2 * PAD
    return Layout(
        positions=positions, paths=paths, tops=tops, left=left, right=right, width=right + left, height=height
    )


def _positions(graph: nx.DiGraph, paths: Mapping[tuple[str, str], Sequence[Item]]) -> dict[Item, Position]:
    """Place each layer's items near the items that they read, nodes before dummy nodes, no two in one row.

    A band's first layer has no gaps between its rows.
    """
    reads = nx.DiGraph()
    reads.add_nodes_from(graph)
    for path in paths.values():
        nx.add_path(reads, path)
    layers = list(nx.topological_generations(reads))
    columns = math.ceil(len(layers) / math.ceil(len(layers) / COLUMNS))
    positions: dict[Item, Position] = {}
    for layer, items in enumerate(layers):
        band, column = divmod(layer, columns)
        nearest = {item: min((positions[before].row for before in reads.pred[item]), default=0) for item in items}
        row = -1
        for item in sorted(items, key=lambda item: (nearest[item], isinstance(item, DummyNode))):
            row = max(row + 1, nearest[item] if column else 0)
            positions[item] = Position(band, row, column)
    return positions
