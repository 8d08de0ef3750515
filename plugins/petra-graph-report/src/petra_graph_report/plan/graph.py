"""The graph of a plan: boxes coloured by device, with edges between them, in layers from left to right.

band 0   stem ── left.0 ── left.1 ──┐         A node's layer is the length of the longest path to it. Layers are
├──── right.0 ───────────┤         wrapped into bands as text is into lines, since most plans are
└────────────────────────┤         chains, which drawers of graphs do not wrap.
band 1   ┌─ join ── merge ── head
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import networkx as nx
from attrs import frozen
from markupsafe import Markup

from petra_graph.program.plan_document import Document
from petra_graph.units import bounded, memory, one_line
from petra_graph_report.plan.plan_blocks import device_colours
from petra_graph_report.svg_drawing import draw_svg, inks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.path import Path

COLUMNS = 8
WIDE, TALL = 104.0, 38.0
"""Pixels of a box."""
_STEP_X, _STEP_Y, _MARGIN, _GAP = 164.0, 66.0, 34.0, 24.0
"""Pixels from box to box, around the graph, and between bands."""
_TRACK, _TRACKS, _ABOVE = 4.0, 3, 9.0
"""Pixels between edges beside one another, and how many there are before they lie on the first again; above a box."""
_LETTERS, _SMALL_LETTERS = 14, 16
"""Letters that a box has room for in its first and in its second line."""
_CORNERS = {"reversible": 8.0, "buffered": 0.0, "head": TALL / 2 - 0.1}


@frozen
class Position:
    """The lower left corner of a node's box, in pixels from the upper left corner of the graph."""

    band: int
    layer: int
    x: float
    y: float
    top: float
    """The upper edge of the first boxes of the band."""

    @property
    def middle(self) -> float:
        return self.y - TALL / 2


def positions(document: Document) -> Mapping[str, Position]:
    """Place a plan's nodes, at most COLUMNS layers to a band, the bands about equally long."""
    graph = nx.DiGraph()
    graph.add_nodes_from(node["name"] for node in document["nodes"])
    graph.add_edges_from((edge["producer"], edge["consumer"]) for edge in document["edges"])
    layers = list(nx.topological_generations(graph))
    columns = _columns(len(layers))
    placed: dict[str, Position] = {}
    row_of: dict[str, int] = {}
    top = 0.0
    for first in range(0, len(layers), columns):
        band = layers[first : first + columns]
        for column, names in enumerate(band):
            nearest = {name: min((row_of[before] for before in graph.pred[name]), default=0) for name in names}
            row = -1
            for name in sorted(names, key=nearest.__getitem__):
                row_of[name] = row = max(row + 1, nearest[name] if column else 0)
                place = first // columns, first + column
                x, y = _MARGIN + column * _STEP_X, top + _MARGIN + row * _STEP_Y + TALL
                placed[name] = Position(*place, x, y, top + _MARGIN)
        top = max(placed[name].y for names in band for name in names) + _GAP
    return placed


def _columns(layers: int) -> int:
    return math.ceil(layers / math.ceil(layers / COLUMNS))


def graph_drawing(document: Document) -> Markup:
    """Draw the graph."""
    placed = positions(document)
    width = max(one.x for one in placed.values()) + WIDE + _MARGIN
    height = max(one.y for one in placed.values()) + _MARGIN

    def draw(figure: Figure) -> None:
        axis = figure.add_axes((0, 0, 1, 1))
        axis.set_xlim(0, width)
        axis.set_ylim(height, 0)
        axis.set_axis_off()
        _draw_edges(axis, document, placed, width)
        _draw_boxes(axis, document, placed)

    return draw_svg(draw, width, height, "graph of nodes")


def _draw_boxes(axis: Axes, document: Document, placed: Mapping[str, Position]) -> None:
    from matplotlib.patches import FancyBboxPatch

    colours = device_colours(document)
    devices = {stage["index"]: stage["device"] for stage in document["stages"]}
    for node in document["nodes"]:
        at, device = placed[node["name"]], devices[node["stage"]]
        corner = _CORNERS[node["kind"]]
        style = f"round,pad=0,rounding_size={corner}" if corner else "square,pad=0"
        edge: dict[str, Any] = {"edgecolor": inks()["box"], "linewidth": 1 if node["kind"] == "reversible" else 2.2}
        box = FancyBboxPatch((at.x, at.y - TALL), WIDE, TALL, style, facecolor=colours[device], zorder=2, **edge)
        axis.add_patch(box)
        name, place = bounded(one_line(node["name"]), _LETTERS), f"{node['stage']} · "
        lines = (
            (name, at.middle - 8, {"fontweight": "bold", "color": "black"}),
            (place + _end_of(device, _SMALL_LETTERS - len(place)), at.middle + 9, {"fontsize": 10, "color": "#222222"}),
        )
        for text, y, look in lines:
            axis.text(at.x + WIDE / 2, y, text, ha="center", va="center", zorder=3, **look)


def _end_of(device: str, width: int) -> str:
    """Return a device's name; of a long one its end, which tells devices of a machine apart."""
    name = one_line(device)
    return name if len(name) <= width else f"…{name[1 - width :]}"


def _draw_edges(axis: Axes, document: Document, placed: Mapping[str, Position], width: float) -> None:
    from matplotlib.patches import FancyArrowPatch

    widest = max((edge["forward_bytes"] for edge in document["edges"]), default=0) or 1
    tracks, columns = Counter[int](), _columns(1 + max(one.layer for one in placed.values()))
    for edge in document["edges"]:
        start, end = placed[edge["producer"]], placed[edge["consumer"]]
        path = _route(start, end, width, tracks[start.band], columns)
        tracks[start.band] += end.layer != start.layer + 1 or start.band != end.band
        look = {"color": inks()["edge"], "linewidth": 1 + 2 * edge["forward_bytes"] / widest, "zorder": 1}
        axis.add_patch(FancyArrowPatch(path=path, arrowstyle="-|>", mutation_scale=9, **look))
        if edge["cut"] and (end.layer, end.y) == (start.layer + 1, start.y) and start.band == end.band:
            ground = {"facecolor": inks()["ground"], "edgecolor": "none", "pad": 0.5}
            look = {"fontsize": 9, "color": inks()["soft"], "ha": "center", "va": "bottom", "bbox": ground}
            axis.text(end.x - (_STEP_X - WIDE) / 2, end.middle - 4, memory(edge["forward_bytes"]), **look)


def _route(start: Position, end: Position, width: float, track: int, columns: int) -> Path:
    """Return an edge's path: to the next layer, above the boxes in between, or around to another band.

    Args:
        start: of the producer.
        end: of the consumer.
        width: of the drawing.
        track: its number among the edges from its band that do not go to the next layer, so that they lie beside one another.
        columns: of the bands.
    """
    from matplotlib.path import Path

    bend, aside = (_STEP_X - WIDE) / 2, _TRACK * (track % _TRACKS)
    points, codes = [(start.x + WIDE, start.middle)], [Path.MOVETO]

    def curve(x: float, y: float) -> None:
        before_x, before_y = points[-1]
        points.extend([((before_x + x) / 2, before_y), ((before_x + x) / 2, y), (x, y)])
        codes.extend([Path.CURVE4] * 3)

    def line(x: float, y: float) -> None:
        points.append((x, y))
        codes.append(Path.LINETO)

    wraps, skips = start.band != end.band, end.layer != start.layer + 1
    leaves, enters = wraps and (start.layer + 1) % columns == 0, wraps and end.layer % columns == 0
    if skips and not leaves:
        curve(start.x + WIDE + bend, start.y - TALL - _ABOVE - aside)
    if wraps:
        between = end.top - _MARGIN - aside
        line(width - _MARGIN / 2 + aside, points[-1][1])
        line(width - _MARGIN / 2 + aside, between)
        line(_MARGIN / 2 - aside, between)
        line(_MARGIN / 2 - aside, end.middle if enters else end.y - TALL - _ABOVE)
    if skips and not enters:
        line(end.x - bend, points[-1][1])
    curve(end.x, end.middle)
    return Path(points, codes)
