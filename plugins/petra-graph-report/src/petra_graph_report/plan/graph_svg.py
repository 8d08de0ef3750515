"""The graph as a drawing: boxes coloured by device, on the grounds of their stages, with edges between them.

    band 0   stem ── left.0 ── left.1 ──┐         A node's layer is the length of the longest path to it. An edge that
               ├──── right.0 ───·───────┤         skips layers has a dummy node in each (the dots), so that no edge
               └───────·────────·──────┐│         crosses a box and no two boxes share a position.
    band 1   ┌─ join ── merge ── head  ││
             ...

Nodes are in layers from left to right, wrapped into bands as text is into lines. Layers and dummy nodes are those of
Sugiyama, Tagawa and Toda (1981).

Decision: a layout of our own. Most plans are chains, and chains want wrapping, which graph drawers do not do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import networkx as nx
from attrs import frozen
from markupsafe import Markup

from petra_graph.program.plan_document import Document
from petra_graph.report.drawing.svg_markup import fitted, svg, tag, title, words
from petra_graph.report.plan.plan_contents import device_colours
from petra_graph.report.plan.short_labels import runs, shapes_label
from petra_graph.units import count, flops, memory, noun

COLUMNS = 8
BOX_WIDTH, BOX_HEIGHT = 98, 40
_PITCH_X, _PITCH_Y = 154, 84
_PAD, _LABEL, _TRACK = 7, 15, 5
"""Pixels around a box's ground; above it, for the stage's name; between two edges that continue in the next band."""
_MARGIN = 14
_NAME, _SMALL, _SMALLEST = 12, 10, 9
_BOLD = 1.15
"""How much wider bold letters are."""
_ROUND = {"reversible": 9, "buffered": 0, "head": BOX_HEIGHT / 2}


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
    """The upper edge of each band."""
    left: float
    """The left edge of the first column."""
    right: float
    """The right edge of the last column's boxes."""
    width: float
    height: float

    def corner(self, position: Position) -> tuple[float, float]:
        """Return a box's upper left corner."""
        return self.left + position.column * _PITCH_X, self.tops[position.band] + position.row * _PITCH_Y

    def middle(self, position: Position) -> float:
        """Return the height at which edges enter and leave a box."""
        return self.corner(position)[1] + BOX_HEIGHT / 2


def layout(document: Document) -> Layout:
    """Place a plan's nodes, at most COLUMNS layers to a band, the bands about equally long.

    Bands have room between them for the edges that continue from one to the next.
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
    left = _MARGIN + _PAD + _TRACK * max(wrapping)
    right = left + max(position.column for position in positions.values()) * _PITCH_X + BOX_WIDTH
    tops = [float(_LABEL + _PAD)]
    for band in bands:
        rows = 1 + max(position.row for position in positions.values() if position.band == band)
        tops.append(tops[-1] + rows * _PITCH_Y + _TRACK * wrapping[band])
    height = tops.pop() - _PITCH_Y + BOX_HEIGHT + 2 * _PAD
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


def graph_svg(document: Document) -> Markup:
    """Draw the graph."""
    placed = layout(document)
    parts = [*_grounds(document, placed), *_edges(document, placed), *_boxes(document, placed)]
    return svg(parts, placed.width, placed.height, class_="graph", role="img", aria_label="graph of nodes and stages")


def _grounds(document: Document, placed: Layout) -> Iterator[Markup]:
    """Draw the grounds below a stage's boxes: one ground for neighbours in a row."""
    for stage in document["stages"]:
        positions = (placed.positions[name] for name in stage["nodes"])
        for run in runs(sorted(positions), lambda position, after: (*position[:2], position.column + 1) == after):
            x, y = placed.corner(run[0])
            width = placed.corner(run[-1])[0] + BOX_WIDTH - x + 2 * _PAD
            top, height = y - _LABEL - 2, BOX_HEIGHT + _LABEL + _PAD + 2
            ground = tag("rect", x=x - _PAD, y=top, width=width, height=height, rx=6, class_="ground")
            # The label may extend above the gap to the next ground.
            label = fitted(
                f"stage {stage['index']}, depth {stage['depth']}", width + _PITCH_X - BOX_WIDTH - 4 * _PAD, _SMALL
            )
            text = words(label, x - _PAD + 3, y - 5, class_="small")
            yield tag("g", title(_about_stage(stage)), ground, text)


def _boxes(document: Document, placed: Layout) -> Iterator[Markup]:
    colours = device_colours(document)
    devices = {stage["index"]: stage["device"] for stage in document["stages"]}
    for node in document["nodes"]:
        x, y = placed.corner(placed.positions[node["name"]])
        device = devices[node["stage"]]
        middle = x + BOX_WIDTH / 2
        look: dict[str, str | float] = {
            "rx": _ROUND[node["kind"]],
            "fill": colours[device],
            "class_": f"box {node['kind']}",
        }
        box = tag("rect", x=x, y=y, width=BOX_WIDTH, height=BOX_HEIGHT, **look)
        name = words(fitted(node["name"], BOX_WIDTH - 8, _BOLD * _NAME), middle, y + 17, class_="name")
        where = words(fitted(device, BOX_WIDTH - 12, _SMALL), middle, y + 31, class_="where")
        yield tag("g", title(_about_node(node, device)), box, name, where)


def _edges(document: Document, placed: Layout) -> Iterator[Markup]:
    tracks: dict[int, int] = {}
    widest = max((edge["forward_bytes"] for edge in document["edges"]), default=0) or 1
    for edge in document["edges"]:
        path = [placed.positions[item] for item in placed.paths[edge["producer"], edge["consumer"]]]
        drawn = "".join(_route(path, placed, tracks))
        width = 1 + 2 * edge["forward_bytes"] / widest
        line = tag("path", d=drawn, stroke_width=width, class_="edge cut" if edge["cut"] else "edge")
        x, y = placed.corner(path[-1])[0], placed.middle(path[-1])
        arrow = tag("path", d=f"M{x:g} {y:g}l-7 -3.5v7z", class_="arrow")
        yield tag("g", title(_about_edge(edge)), line, arrow, _carried(edge, path, placed))


def _route(path: Sequence[Position], placed: Layout, tracks: dict[int, int]) -> Iterator[str]:
    """Draw from each position to the next; across bands by way of the margins, each edge on a track of its own."""
    x, _ = placed.corner(path[0])
    yield f"M{x + BOX_WIDTH:g} {placed.middle(path[0]):g}"
    for before, after in pairwise(path):
        x, y = placed.corner(after)[0], placed.middle(after)
        if before.band == after.band:
            bend = (_PITCH_X - BOX_WIDTH) / 2
            yield f"C{x - bend:g} {placed.middle(before):g} {x - bend:g} {y:g} {x:g} {y:g}"
        else:
            track = tracks.get(before.band, 0)
            tracks[before.band] = track + 1
            out = placed.right + _PAD + 5 + _TRACK * track
            into = placed.left - _PAD - 5 - _TRACK * track
            between = placed.tops[after.band] - _LABEL - _PAD - 2 - _TRACK * track
            yield f"H{out:g}V{between:g}H{into:g}V{y:g}H{x:g}"
        if after is not path[-1]:
            yield f"H{x + BOX_WIDTH:g}"


def _carried(edge: Document, path: Sequence[Position], placed: Layout) -> Markup:
    """Write the bytes that an edge between stages carries into the gap before its consumer."""
    if not edge["cut"] or (path[-2].band, path[-2].row) != (path[-1].band, path[-1].row):
        return Markup()
    gap = _PITCH_X - BOX_WIDTH
    text = fitted(memory(edge["forward_bytes"]), gap - 2 * _PAD, _SMALLEST)
    return words(text, placed.corner(path[-1])[0] - gap / 2, placed.middle(path[-1]) - 5, class_="carries")


def _about_stage(stage: Document) -> str:
    return (
        f"stage {stage['index']} on {stage['device']}\ndepth {stage['depth']}, staleness {stage['staleness']:g} {noun(stage['staleness'], 'update')}\n"
        f"{count(stage['parameters'])} parameters, {memory(stage['bytes']['total'])}"
    )


def _about_node(node: Document, device: str) -> str:
    work = node["flops"]
    return (
        f"{node['name']}: {node['kind']}, {node['block']}\nstage {node['stage']} on {device}\n"
        f"{count(node['parameters'])} parameters\noutputs {shapes_label(node)}\n"
        f"forward {flops(work['forward'])}, backward {flops(work['backward'])} a micro-batch"
    )


def _about_edge(edge: Document) -> str:
    capacity = "" if edge["capacity"] is None else f"\ncapacity {edge['capacity']}"
    return (
        f"{edge['producer']} → {edge['consumer']}\nforward {memory(edge['forward_bytes'])}, "
        f"backward {memory(edge['backward_bytes'])} a micro-batch{capacity}"
    )
