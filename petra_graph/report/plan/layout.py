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
from itertools import groupby, pairwise

import networkx as nx
from attrs import frozen

from petra_graph.program.plan_document import Document

COLUMNS = 8


@frozen
class DummyNode:
    """A position that an edge takes up in a layer between its ends."""

    producer: str
    consumer: str
    layer: int


Item = str | DummyNode
"""A node, by name, or an edge's dummy node."""


@frozen(kw_only=True)
class Position:
    """A position in the drawing."""

    band: int
    column: int
    row: int


@frozen(kw_only=True)
class Layout:
    """The positions of all nodes, and the edges between them."""

    positions: Mapping[Item, Position]
    paths: Mapping[tuple[str, str], tuple[Item, ...]]
    """An edge's producer, dummy nodes and consumer."""
    rows: Sequence[int]
    """The number of rows of each band."""

    def wrapping(self, band: int) -> int:
        """Return how many edges go on from a band to the next."""
        hops = (hop for path in self.paths.values() for hop in pairwise(path))
        return sum(self.positions[a].band == band < self.positions[b].band for a, b in hops)


def layout(document: Document) -> Layout:
    """Place a plan's nodes, at most COLUMNS layers to a band, the bands about equally long."""
    graph = nx.DiGraph()
    graph.add_nodes_from(node["name"] for node in document["nodes"])
    graph.add_edges_from((edge["producer"], edge["consumer"]) for edge in document["edges"])
    layers = [list(names) for names in nx.topological_generations(graph)]
    columns = math.ceil(len(layers) / math.ceil(len(layers) / COLUMNS))
    layer_of = {name: layer for layer, names in enumerate(layers) for name in names}
    paths = {
        (producer, consumer): (
            producer,
            *(DummyNode(producer, consumer, layer) for layer in range(layer_of[producer] + 1, layer_of[consumer])),
            consumer,
        )
        for producer, consumer in graph.edges
    }
    rows = _rows(layers, paths, columns)
    positions = {
        item: Position(band=layer // columns, column=layer % columns, row=row)
        for layer, items in enumerate(rows)
        for item, row in items.items()
    }
    bands = groupby(enumerate(rows), key=lambda numbered: numbered[0] // columns)
    heights = [max(row for _, items in band for row in items.values()) + 1 for _, band in bands]
    return Layout(positions=positions, paths=paths, rows=heights)


def _rows(
    layers: Sequence[Sequence[str]], paths: Mapping[tuple[str, str], Sequence[Item]], columns: int
) -> list[dict[Item, int]]:
    """Return the rows of each layer's items: near the items that they read, nodes before dummy nodes, no two the same.

    A band's first layer has no gaps between its rows.
    """
    reads: dict[Item, list[Item]] = {}
    dummies: list[list[Item]] = [[] for _ in layers]
    for path in paths.values():
        for before, item in pairwise(path):
            reads.setdefault(item, []).append(before)
            if isinstance(item, DummyNode):
                dummies[item.layer].append(item)
    rows: list[dict[Item, int]] = []
    row_of: dict[Item, int] = {}
    for layer, items in enumerate(zip(layers, dummies, strict=True)):
        nearest = {
            item: min((row_of[before] for before in reads.get(item, ())), default=0)
            for group in items
            for item in group
        }
        row = -1
        rows.append({})
        for item in sorted(nearest, key=lambda item: (nearest[item], isinstance(item, DummyNode))):
            row = max(row + 1, nearest[item] if layer % columns else 0)
            rows[-1][item] = row_of[item] = row
    return rows
