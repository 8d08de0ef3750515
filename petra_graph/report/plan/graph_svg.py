"""The graph as a drawing: boxes coloured by device, on the grounds of their stages, with edges between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from petra_graph.program.plan_document import Document
from petra_graph.report.plan.document import device_colours
from petra_graph.report.plan.labels import runs, shapes_label
from petra_graph.report.plan.layout import BOX_HEIGHT, BOX_WIDTH, LABEL, PAD, PITCH_X, TRACK, Layout, Position, layout
from petra_graph.report.plan.svg import fitted, svg, tag, title, words
from petra_graph.report.plan.units import count, flops, memory

_NAME, _SMALL, _SMALLEST = 12, 10, 9
_BOLD = 1.15
"""How much wider bold letters are."""
_ROUND = {"reversible": 9, "buffered": 0, "head": BOX_HEIGHT / 2}


def graph_svg(document: Document) -> str:
    """Draw the graph."""
    placed = layout(document)
    parts = [*_grounds(document, placed), *_edges(document, placed), *_boxes(document, placed)]
    return svg(parts, placed.width, placed.height, class_="graph", role="img", aria_label="graph of nodes and stages")


def _grounds(document: Document, placed: Layout) -> Iterator[str]:
    """Draw the grounds below a stage's boxes: one ground for neighbours in a row."""
    for stage in document["stages"]:
        positions = (placed.positions[name] for name in stage["nodes"])
        for run in runs(sorted(positions), lambda position, after: (*position[:2], position.column + 1) == after):
            x, y = placed.corner(run[0])
            width = placed.corner(run[-1])[0] + BOX_WIDTH - x + 2 * PAD
            top, height = y - LABEL - 2, BOX_HEIGHT + LABEL + PAD + 2
            ground = tag("rect", x=x - PAD, y=top, width=width, height=height, rx=6, class_="ground")
            label = fitted(f"stage {stage['index']}, depth {stage['depth']}", width - 4, _SMALL)
            text = words(label, x - PAD + 3, y - 5, class_="small")
            yield tag("g", f"{title(_about_stage(stage))}{ground}{text}")


def _boxes(document: Document, placed: Layout) -> Iterator[str]:
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
        yield tag("g", f"{title(_about_node(node, device))}{box}{name}{where}")


def _edges(document: Document, placed: Layout) -> Iterator[str]:
    tracks: dict[int, int] = {}
    widest = max((edge["forward_bytes"] for edge in document["edges"]), default=0) or 1
    for edge in document["edges"]:
        path = [placed.positions[item] for item in placed.paths[edge["producer"], edge["consumer"]]]
        drawn = "".join(_route(path, placed, tracks))
        width = 1 + 2 * edge["forward_bytes"] / widest
        line = tag("path", d=drawn, stroke_width=width, class_="edge cut" if edge["cut"] else "edge")
        x, y = placed.corner(path[-1])[0], placed.middle(path[-1])
        arrow = tag("path", d=f"M{x:g} {y:g}l-7 -3.5v7z", class_="arrow")
        yield tag("g", title(_about_edge(edge)) + line + arrow + _carried(edge, path, placed))


def _route(path: Sequence[Position], placed: Layout, tracks: dict[int, int]) -> Iterator[str]:
    """Draw from each position to the next; across bands by way of the margins, each edge on a track of its own."""
    x, _ = placed.corner(path[0])
    yield f"M{x + BOX_WIDTH:g} {placed.middle(path[0]):g}"
    for before, after in pairwise(path):
        x, y = placed.corner(after)[0], placed.middle(after)
        if before.band == after.band:
            bend = (PITCH_X - BOX_WIDTH) / 2
            yield f"C{x - bend:g} {placed.middle(before):g} {x - bend:g} {y:g} {x:g} {y:g}"
        else:
            track = tracks.get(before.band, 0)
            tracks[before.band] = track + 1
            out = placed.right + PAD + 5 + TRACK * track
            into = placed.left - PAD - 5 - TRACK * track
            between = placed.tops[after.band] - LABEL - PAD - 2 - TRACK * track
            yield f"H{out:g}V{between:g}H{into:g}V{y:g}H{x:g}"
        if after is not path[-1]:
            yield f"H{x + BOX_WIDTH:g}"


def _carried(edge: Document, path: Sequence[Position], placed: Layout) -> str:
    """Write the bytes that an edge between stages carries into the gap before its consumer."""
    if not edge["cut"] or (path[-2].band, path[-2].row) != (path[-1].band, path[-1].row):
        return ""
    gap = PITCH_X - BOX_WIDTH
    text = fitted(memory(edge["forward_bytes"]), gap - 2 * PAD + 8, _SMALLEST)
    return words(text, placed.corner(path[-1])[0] - gap / 2, placed.middle(path[-1]) - 5, class_="carries")


def _about_stage(stage: Document) -> str:
    return (
        f"stage {stage['index']} on {stage['device']}\ndepth {stage['depth']}, staleness {stage['staleness']:g} updates\n"
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
