"""The graph as a drawing: boxes coloured by device, on the grounds of their stages, wires between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from attrs import frozen

from petra_graph.report.plan.document import Document, stages_by_index
from petra_graph.report.plan.layout import Cell, Layout, layout
from petra_graph.report.plan.palette import device_colours
from petra_graph.report.plan.svg import fitted, svg, tag, title, words
from petra_graph.report.plan.units import count, flops, memory

BOX_WIDTH, BOX_HEIGHT = 106, 40
_PITCH_X, _PITCH_Y = 152, 84
_MARGIN, _TRACK = 14, 5
_PAD, _LABEL = 7, 15
_NAME, _SMALL = 12, 10
_BOLD = 1.15
"""How much wider bold letters are."""
_ROUND = {"reversible": 9, "buffered": 0, "head": BOX_HEIGHT / 2}


@frozen(kw_only=True)
class Places:
    """Coordinates of a layout's cells."""

    tops: Sequence[float]
    """Each band's."""
    left: float
    """Of the first column."""
    right: float
    """Of the last column's boxes."""
    width: float
    height: float

    def corner(self, cell: Cell) -> tuple[float, float]:
        """Return a box's upper left corner."""
        return self.left + cell.column * _PITCH_X, self.tops[cell.band] + cell.lane * _PITCH_Y

    def middle(self, cell: Cell) -> float:
        """Return the height at which wires enter and leave a box."""
        return self.corner(cell)[1] + BOX_HEIGHT / 2


def graph_svg(document: Document) -> str:
    """Draw the graph."""
    placed = layout(document)
    places = places_of(placed)
    parts = [*_grounds(document, placed, places), *_wires(document, placed, places), *_boxes(document, placed, places)]
    return svg(parts, places.width, places.height, class_="graph", role="img", aria_label="graph of nodes and stages")


def places_of(placed: Layout) -> Places:
    """Return coordinates: bands below each other, with room between them for the wires that go on."""
    wrapping = [placed.wrapping(band) for band in range(len(placed.lanes))]
    side = _MARGIN + _PAD + _TRACK * max(wrapping)
    columns = max(cell.column for cell in placed.cells.values()) + 1
    right = side + (columns - 1) * _PITCH_X + BOX_WIDTH
    top = float(_LABEL + _PAD)
    tops = []
    for lanes, wires in zip(placed.lanes, wrapping, strict=True):
        tops.append(top)
        top += lanes * _PITCH_Y + _TRACK * wires
    return Places(tops=tops, left=side, right=right, width=right + side, height=top - _PITCH_Y + BOX_HEIGHT + 2 * _PAD)


def _grounds(document: Document, placed: Layout, places: Places) -> Iterator[str]:
    """Draw what lies below a stage's boxes: one ground for neighbours in a lane."""
    for stage in document["stages"]:
        cells = sorted((placed.cells[name] for name in stage["nodes"]), key=lambda c: (c.band, c.lane, c.column))
        runs: list[list[Cell]] = []
        for cell in cells:
            last = runs[-1][-1] if runs else None
            beside = last and (cell.band, cell.lane, cell.column - 1) == (last.band, last.lane, last.column)
            if beside:
                runs[-1].append(cell)
            else:
                runs.append([cell])
        for run in runs:
            x, y = places.corner(run[0])
            width = places.corner(run[-1])[0] + BOX_WIDTH - x
            label = f"stage {stage['index']}, depth {stage['depth']}"
            ground = tag(
                "rect",
                x=x - _PAD,
                y=y - _LABEL - 2,
                width=width + 2 * _PAD,
                height=BOX_HEIGHT + _LABEL + _PAD + 2,
                rx=6,
                class_="ground",
            )
            text = words(fitted(label, width + 2 * _PAD - 4, _SMALL), x - _PAD + 3, y - 5, class_="small")
            yield tag("g", f"{title(_about_stage(stage))}{ground}{text}")


def _boxes(document: Document, placed: Layout, places: Places) -> Iterator[str]:
    colours, stages = device_colours(document), stages_by_index(document)
    for node in document["nodes"]:
        x, y = places.corner(placed.cells[node["name"]])
        device = stages[node["stage"]]["device"]
        middle = x + BOX_WIDTH / 2
        box = tag(
            "rect",
            x=x,
            y=y,
            width=BOX_WIDTH,
            height=BOX_HEIGHT,
            rx=_ROUND[node["kind"]],
            fill=colours[device],
            class_=f"box {node['kind']}",
        )
        name = words(fitted(node["name"], BOX_WIDTH - 8, _BOLD * _NAME), middle, y + 17, class_="name")
        where = words(fitted(device, BOX_WIDTH - 12, _SMALL), middle, y + 31, class_="where")
        yield tag("g", f"{title(_about_node(node, device))}{box}{name}{where}")


def _wires(document: Document, placed: Layout, places: Places) -> Iterator[str]:
    tracks: dict[int, int] = {}
    widest = max((edge["forward_bytes"] for edge in document["edges"]), default=0) or 1
    for edge in document["edges"]:
        path = [placed.cells[item] for item in placed.paths[edge["producer"], edge["consumer"]]]
        drawn = "".join(_route(path, places, tracks))
        about = (
            f"{edge['producer']} → {edge['consumer']}\n"
            f"forward {memory(edge['forward_bytes'])}, backward {memory(edge['backward_bytes'])} a micro-batch"
        )
        about += "" if edge["capacity"] is None else f"\ncapacity {edge['capacity']}"
        width = 1 + 2 * edge["forward_bytes"] / widest
        line = tag("path", d=drawn, stroke_width=width, class_="wire cut" if edge["cut"] else "wire")
        yield tag("g", title(about) + line + _arrow(path[-1], places) + _wire_label(edge, path, places))


def _route(path: Sequence[Cell], places: Places, tracks: dict[int, int]) -> Iterator[str]:
    """Draw from each cell to the next; across bands by way of the margins, each wire on a track of its own."""
    x, _ = places.corner(path[0])
    yield f"M{x + BOX_WIDTH:g} {places.middle(path[0]):g}"
    for before, after in pairwise(path):
        x, y = places.corner(after)[0], places.middle(after)
        if before.band == after.band:
            bend = (_PITCH_X - BOX_WIDTH) / 2
            yield f"C{x - bend:g} {places.middle(before):g} {x - bend:g} {y:g} {x:g} {y:g}"
        else:
            track = tracks.get(before.band, 0)
            tracks[before.band] = track + 1
            out = places.right + _PAD + 5 + _TRACK * track
            into = places.left - _PAD - 5 - _TRACK * track
            between = places.tops[after.band] - _LABEL - _PAD - 2 - _TRACK * track
            yield f"H{out:g}V{between:g}H{into:g}V{y:g}H{x:g}"
        if after is not path[-1]:
            yield f"H{x + BOX_WIDTH:g}"


def _arrow(cell: Cell, places: Places) -> str:
    x, y = places.corner(cell)[0], places.middle(cell)
    return tag("path", d=f"M{x:g} {y:g}l-7 -3.5v7z", class_="arrow")


def _wire_label(edge: Document, path: Sequence[Cell], places: Places) -> str:
    """Write what a wire between stages carries, into the gap before its reader."""
    if not edge["cut"] or path[-2].band != path[-1].band or path[-2].lane != path[-1].lane:
        return ""
    gap = _PITCH_X - BOX_WIDTH - 2 * _PAD
    text = memory(edge["forward_bytes"])
    x = places.corner(path[-1])[0] - (_PITCH_X - BOX_WIDTH) / 2
    return words(fitted(text, gap + 8, 9), x, places.middle(path[-1]) - 5, class_="carries")


def _about_stage(stage: Document) -> str:
    return (
        f"stage {stage['index']} on {stage['device']}\ndepth {stage['depth']}, staleness {stage['staleness']:g} updates\n"
        f"{count(stage['parameters'])} parameters, {memory(stage['bytes']['total'])}"
    )


def _about_node(node: Document, device: str) -> str:
    shapes = ", ".join("x".join(map(str, shape)) for shape in node["outputs"])
    work = node["flops"]
    return (
        f"{node['name']}: {node['kind']}, {node['block']}\nstage {node['stage']} on {device}\n"
        f"{count(node['parameters'])} parameters\noutputs {shapes}\n"
        f"forward {flops(work['forward'])}, backward {flops(work['backward'])} a micro-batch"
    )
