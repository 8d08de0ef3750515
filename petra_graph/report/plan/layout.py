"""Where the graph's nodes are drawn: in layers from left to right, wrapped into bands as text into lines.

    band 0   stem ── left.0 ── left.1 ──┐         A node's layer is the longest path to it. An edge that passes layers
               ├──── right.0 ───·───────┤         holds a place in each (the dots), so that no edge crosses a box and
               └───────·────────·──────┐│         no two boxes share a cell.
    band 1   ┌─ join ── merge ── head  ││
             ...

Decision: a layout of our own. Chains are what most plans are, and they want wrapping, which graph drawers do not do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise

import networkx as nx
from attrs import frozen

from petra_graph.report.plan.document import Document

COLUMNS = 8


@frozen
class Passing:
    """A place that an edge takes up in a layer between its ends."""

    producer: str
    consumer: str
    layer: int


Item = str | Passing
"""A node, by name, or a place where an edge passes."""


@frozen(kw_only=True)
class Cell:
    """A place in the drawing."""

    band: int
    column: int
    lane: int


@frozen(kw_only=True)
class Layout:
    """Where everything is."""

    cells: Mapping[Item, Cell]
    paths: Mapping[tuple[str, str], tuple[Item, ...]]
    """What each edge passes, its ends included."""
    lanes: Sequence[int]
    """How many lanes each band has."""

    def wrapping(self, band: int) -> int:
        """Return how many edges go on from a band to the next."""
        hops = (hop for path in self.paths.values() for hop in pairwise(path))
        return sum(self.cells[a].band == band < self.cells[b].band for a, b in hops)


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
            *(Passing(producer, consumer, layer) for layer in range(layer_of[producer] + 1, layer_of[consumer])),
            consumer,
        )
        for producer, consumer in graph.edges
    }
    lanes = _lanes(layers, paths, columns)
    cells = {
        item: Cell(band=layer // columns, column=layer % columns, lane=lane)
        for layer, items in enumerate(lanes)
        for item, lane in items.items()
    }
    bands = groupby(enumerate(lanes), key=lambda numbered: numbered[0] // columns)
    heights = [max(lane for _, items in band for lane in items.values()) + 1 for _, band in bands]
    return Layout(cells=cells, paths=paths, lanes=heights)


def _lanes(
    layers: Sequence[Sequence[str]], paths: Mapping[tuple[str, str], Sequence[Item]], columns: int
) -> list[dict[Item, int]]:
    """Give each item of a layer a lane: near what it reads, nodes before passing edges, no two the same.

    A band begins without gaps between its lanes.
    """
    reads: dict[Item, list[Item]] = {}
    passing: list[list[Item]] = [[] for _ in layers]
    for path in paths.values():
        for before, item in pairwise(path):
            reads.setdefault(item, []).append(before)
            if isinstance(item, Passing):
                passing[item.layer].append(item)
    placed: list[dict[Item, int]] = []
    lane_of: dict[Item, int] = {}
    for layer, (names, edges) in enumerate(zip(layers, passing, strict=True)):
        wishes = {
            item: min((lane_of[before] for before in reads.get(item, ())), default=0) for item in (*names, *edges)
        }
        lane = -1
        lanes: dict[Item, int] = {}
        for item in sorted(wishes, key=lambda item: (wishes[item], isinstance(item, Passing))):
            lane = max(lane + 1, wishes[item] if layer % columns else 0)
            lanes[item] = lane
        placed.append(lanes)
        lane_of |= lanes
    return placed
