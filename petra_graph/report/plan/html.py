"""A plan as one page that needs no other file: no script, style, font or picture is fetched.

The page's own policy forbids fetching, so that a hostile name cannot make it fetch either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from html import escape
from importlib.resources import files

from petra_graph import __version__
from petra_graph.program.plan_document import Document
from petra_graph.report.plan.charts import device_bars, full_timeline, stage_bars, too_thin, whole_timeline
from petra_graph.report.plan.columns import (
    device_columns,
    edge_columns,
    node_columns,
    stage_columns,
    title_lines,
    totals,
)
from petra_graph.report.plan.document import DEVICE_COLOURS, device_colours, parts_held
from petra_graph.report.plan.graph_svg import graph_svg
from petra_graph.report.plan.svg import tag
from petra_graph.report.plan.tables import Column, pair_columns
from petra_graph.report.plan.units import PLAIN, factor, memory, one_line, paper_memory, percent, plural, seconds

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_SECTIONS = ("graph", "memory", "timeline", "tables")
_WIDE = 120
"""Characters of a table's cell: longer names are cut."""
_ZOOM = (("0.8", "-"), ("1.25", "+"), ("1", "100 %"), ("fit", "fit"))


def html(document: Document) -> str:
    """Write a plan as a page."""
    return f"""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>plan of {escape(one_line(document["name"]))}</title>
<style>{_resource("page.css")}</style>
</head>
<body>{"".join(_body(document))}<script>{_resource("page.js")}</script></body>
</html>
"""


@cache
def _resource(name: str) -> str:
    return files("petra_graph.report.plan").joinpath(name).read_text(encoding="utf-8")


def _body(document: Document) -> Iterator[str]:
    network, training = title_lines(document)
    yield tag("h1", escape(one_line(document["name"])))
    yield _paragraph(network.removeprefix(f"{one_line(document['name'])}: "), "soft")
    yield _paragraph(training, "soft")
    yield tag("nav", "".join(tag("a", name.capitalize(), href=f"#{name}") for name in _SECTIONS))
    yield _notes("warnings", document)
    yield _figures(document)
    yield _notes("assumptions", document)
    yield from _graph(document)
    yield from _memory(document)
    yield from _timeline(document)
    yield from _tables(document)
    yield tag("footer", escape(f"Predicted by petra-graph {__version__} plan; nothing here was measured by a run."))


def _paragraph(text: str, kind: str = "note") -> str:
    return tag("p", escape(text), class_=kind)


def _heading(name: str) -> str:
    return tag("h2", name.capitalize(), id=name)


def _notes(kind: str, document: Document) -> str:
    items = "".join(tag("li", escape(note)) for note in document[kind])
    return items and tag("section", f"<strong>{kind.capitalize()}</strong>{tag('ul', items)}", class_=kind)


def _figures(document: Document) -> str:
    """Return the numbers that a reader looks for first, each with a note."""
    timing, devices = document["timing"], document["devices"]
    fullest = max(devices, key=lambda device: device["bytes"]["total"])
    limit = fullest["memory_bytes"]
    of = f"{fullest['name']}, which has {memory(limit)}" if limit is not None else fullest["name"]
    stalest = max(stage["staleness"] for stage in document["stages"])
    tick, paper = seconds(timing["tick_seconds"]), paper_memory(document["paper_accounting"]["total"])
    figures = (
        ("throughput", PLAIN.text(timing["samples_per_second"]), f"samples/s; a tick takes {tick}"),
        ("speed-up", factor(timing["speedup_over_reversible_backprop"]), "over the same stages in turn"),
        ("bubble", percent(timing["bubble_fraction"]), "of the devices' time is idle"),
        ("fullest device", memory(fullest["bytes"]["total"]), f"on {one_line(of)}"),
        ("memory, all stages", memory(document["totals"]["bytes"]["total"]), f"{paper} GB as the paper counts"),
        ("staleness at most", plural(stalest, "update"), f"accumulation {document['accumulation']}"),
    )
    cards = (
        tag("div", f"{tag('dt', escape(name))}<dd>{escape(value)}{tag('small', escape(note))}</dd>")
        for name, value, note in figures
    )
    return tag("dl", "".join(cards), class_="figures")


def _legend(entries: Iterable[tuple[str, str, str]]) -> str:
    """Return a legend of names, colours and classes."""
    items = (
        tag("li", f"{tag('i', style=f'background:{colour}', class_=kind)}{escape(one_line(name))}")
        for name, colour, kind in entries
    )
    return tag("ul", "".join(items), class_="legend")


def _scrolled(drawing: str) -> str:
    return tag("div", drawing, class_="scroll")


def _zoomed(note: str, drawing: str) -> str:
    buttons = "".join(tag("button", label, type="button", data_by=by) for by, label in _ZOOM)
    return tag("div", tag("div", buttons, class_="zoom") + note + _scrolled(drawing))


def _graph(document: Document) -> Iterator[str]:
    colours = device_colours(document)
    shown = list(colours.items())[: len(DEVICE_COLOURS)]
    devices = [(name, colour, "") for name, colour in shown]
    kinds = [(kind, "transparent", kind) for kind in ("reversible", "buffered", "head")]
    yield _heading("graph")
    note = (
        "Boxes are nodes, coloured by device; grounds are stages; an edge's width is the bytes that a micro-batch "
        "sends forward."
    )
    if len(colours) > len(shown):
        note += f" Colours repeat: {plural(len(colours), 'device')}, {len(shown)} colours."
    yield _paragraph(f"{note} Rest the pointer on anything for its numbers.")
    yield _zoomed(_legend([*devices, *kinds]), graph_svg(document))


def _memory(document: Document) -> Iterator[str]:
    held = parts_held(stage["bytes"] for stage in document["stages"])
    legend = _legend((part.name, part.colour, "") for part in held)
    yield _heading("memory")
    yield tag("h3", "Stages") + legend + _scrolled(stage_bars(document))
    if any(len(device["stages"]) > 1 for device in document["devices"]):
        yield tag("h3", "Devices") + legend + _scrolled(device_bars(document))


def _timeline(document: Document) -> Iterator[str]:
    yield _heading("timeline")
    if not document["timeline"]:
        yield _paragraph("Nothing was simulated.")
        return
    yield tag("h3", "From the start")
    if too_thin(document):
        yield _paragraph(
            "There are too many blocks for one drawing: a row's upper half shows the times of forwards, its lower half "
            "the times of backwards."
        )
    yield _legend((verb, f"var(--{verb})", verb) for verb in ("forward", "backward", "update"))
    yield _scrolled(whole_timeline(document))
    if detail := full_timeline(document):
        yield tag("h3", "Several ticks, once every stage works")
        note = "F and B are the forward and the backward of a micro-batch, by its number."
        yield _zoomed(_paragraph(note), detail)


def _tables(document: Document) -> Iterator[str]:
    yield _heading("tables")
    pairs = (_table(pair_columns("", rows), title) for title, rows in totals(document))
    yield tag("div", "".join(pairs), class_="pairs")
    for label, columns, opened in (
        ("Stages", stage_columns(document, _WIDE), True),
        ("Devices", device_columns(document, _WIDE, bar_cells=0), True),
        ("Nodes", node_columns(document, _WIDE), False),
        ("Edges", edge_columns(document, _WIDE), False),
    ):
        yield f"<details{' open' * opened}>{tag('summary', label)}{_scrolled(_table(columns))}</details>"


def _table(columns: Sequence[Column], title: str = "") -> str:
    """Write columns as a table, under their heads or under one title."""
    kinds = ["left" if column.left else "" for column in columns]

    def row(name: str, texts: Iterable[str]) -> str:
        cells = (tag(name, escape(text), class_=kind) for text, kind in zip(texts, kinds, strict=True))
        return tag("tr", "".join(cells))

    head = row("th", (column.head for column in columns))
    if title:
        head = tag("tr", tag("th", escape(title), colspan=len(columns), class_="left"))
    body = "".join(row("td", texts) for texts in zip(*(column.cells for column in columns), strict=True))
    return tag("table", tag("thead", head) + tag("tbody", body))
