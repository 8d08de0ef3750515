"""A plan as one page that needs no other file: no script, style, font or picture is fetched.

The page is the template `plan_page.html`; this module gathers its values. The page's own policy forbids fetching, so that a
hostile name cannot make it fetch either.
"""

from __future__ import annotations

from typing import Any

from petra_graph.program.plan_document import Document
from petra_graph.report.drawing.named_rows import beside
from petra_graph.report.page_templates import rendered
from petra_graph.report.plan.graph_svg import graph_svg
from petra_graph.report.plan.plan_answers import answers
from petra_graph.report.plan.plan_contents import DEVICE_COLOURS, device_colours, parts_held
from petra_graph.report.plan.plan_tables import (
    device_columns,
    edge_columns,
    node_columns,
    stage_columns,
    title_lines,
    totals,
)
from petra_graph.report.plan.stage_rows import device_bars, full_timeline, stage_bars, too_thin, whole_timeline
from petra_graph.report.text_tables import pair_columns
from petra_graph.units import one_line, plural

_WIDE = 120
"""Characters of a table's cell: longer names are cut."""


def plan_page(document: Document) -> str:
    """Write a plan as a page."""
    name = one_line(document["name"])
    network, training = title_lines(document)
    return rendered(
        "plan/plan_page.html",
        name=name,
        network=network.removeprefix(f"{name}: "),
        training=training,
        warnings=document["warnings"],
        assumptions=document["assumptions"],
        answers=answers(document, "assumptions below the graph"),
        graph=_graph(document),
        memory=_memory(document),
        timeline=_timeline(document),
        totals=[(title, pair_columns("", rows)) for title, rows in totals(document)],
        tables=[
            ("Stages", stage_columns(document, _WIDE), True),
            ("Devices", device_columns(document, _WIDE, bar_cells=0), True),
            ("Nodes", node_columns(document, _WIDE), False),
            ("Edges", edge_columns(document, _WIDE), False),
        ],
    )


def _graph(document: Document) -> dict[str, Any]:
    colours = device_colours(document)
    shown = list(colours.items())[: len(DEVICE_COLOURS)]
    repeat = len(colours) > len(shown)
    return {
        "legend": [
            *((name, colour, "") for name, colour in shown),
            *((kind, "transparent", kind) for kind in ("reversible", "buffered", "head")),
        ],
        "colours_repeat": f"{plural(len(colours), 'device')}, {len(shown)} colours" if repeat else "",
        "drawing": graph_svg(document),
    }


def _memory(document: Document) -> dict[str, Any]:
    shared = any(len(device["stages"]) > 1 for device in document["devices"])
    return {
        "legend": [(part.name, part.colour, "") for part in parts_held(stage["bytes"] for stage in document["stages"])],
        "stages": beside(stage_bars(document)),
        "devices": beside(device_bars(document)) if shared else None,
    }


def _timeline(document: Document) -> dict[str, Any]:
    if not document["timeline"]:
        return {}
    return {
        "too_thin": too_thin(document),
        "whole": whole_timeline(document),
        "detail": full_timeline(document),
    }
