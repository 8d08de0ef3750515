"""A plan as one page that needs no other file: no script, style, font or picture is fetched.

The page's own policy forbids fetching, so that a hostile name cannot make it fetch either.
"""

from __future__ import annotations

from petra_graph import units
from petra_graph.program.plan_document import Document
from petra_graph.report.plan.plan_answers import answers
from petra_graph.report.plan.plan_tables import (
    PART_NAMES,
    device_columns,
    parts_held,
    stage_columns,
    title_lines,
    totals,
)
from petra_graph.report.text_tables import (
    Column,
    direction_columns,
    name_column,
    number_column,
    pair_columns,
    text_column,
)
from petra_graph.units import one_line, plural
from petra_graph_report.compare.comparison_page import comparison_page
from petra_graph_report.pages import render_page
from petra_graph_report.plan.graph import graph_drawing
from petra_graph_report.plan.plan_blocks import DEVICE_COLOURS, PART_COLOURS, device_colours
from petra_graph_report.plan.timeline import device_bars, full_timeline, stage_bars, too_thin, whole_timeline

_WIDE = 120
"""Characters of a table's cell: longer names are cut."""


def page(document: Document) -> str:
    """Write what `petra-graph plan --json` prints, a plan or a table of plans, as a page."""
    return plan_page(document) if "stages" in document else comparison_page(document)


def plan_page(document: Document) -> str:
    """Write a plan as a page."""
    name = one_line(document["name"])
    network, training = title_lines(document)
    devices = list(device_colours(document).items())
    repeat = len(devices) > len(DEVICE_COLOURS)
    shared = any(len(device["stages"]) > 1 for device in document["devices"])
    simulated = bool(document["timeline"])
    return render_page(
        "plan.html",
        name=name,
        network=network.removeprefix(f"{name}: "),
        training=training,
        warnings=document["warnings"],
        assumptions=document["assumptions"],
        answers=answers(document, "assumptions below the graph"),
        graph=graph_drawing(document),
        devices=devices[: len(DEVICE_COLOURS)],
        colours_repeat=f"{plural(len(devices), 'device')}, {len(DEVICE_COLOURS)} colours" if repeat else "",
        parts=part_legend(document),
        stage_bars=stage_bars(document),
        device_bars=device_bars(document) if shared else None,
        too_thin=too_thin(document),
        whole=whole_timeline(document) if simulated else None,
        detail=full_timeline(document) if simulated else None,
        totals=[(title, pair_columns("", rows)) for title, rows in totals(document)],
        tables=[
            ("Stages", stage_columns(document, _WIDE), True),
            ("Devices", device_columns(document, _WIDE, bar_cells=0), True),
            ("Nodes", _node_columns(document), False),
            ("Edges", _edge_columns(document), False),
        ],
    )


def part_legend(document: Document) -> list[tuple[str, str]]:
    """Return the parts of memory that any stage has, with their colours."""
    return [
        (PART_NAMES[part], PART_COLOURS[part]) for part in parts_held(stage["bytes"] for stage in document["stages"])
    ]


def _node_columns(document: Document) -> list[Column]:
    """Return a node's kind, block and stage, its inputs and outputs, its parameters and its work."""
    nodes = document["nodes"]
    shapes = [", ".join("x".join(map(str, shape)) for shape in node["outputs"]) for node in nodes]
    return [
        name_column("node", (node["name"] for node in nodes), _WIDE),
        name_column("kind", (node["kind"] for node in nodes), _WIDE),
        name_column("block", (node["block"] for node in nodes), _WIDE),
        text_column("stage", (node["stage"] for node in nodes)),
        text_column("keeps", (node.get("keeps") for node in nodes)),
        name_column("reads", (", ".join(node["inputs"]) for node in nodes), _WIDE),
        name_column("outputs", shapes, _WIDE),
        number_column("parameters", units.COUNT_WORDS, [node["parameters"] for node in nodes]),
        *direction_columns("{}", units.FLOPS, [node["flops"] for node in nodes]),
    ]


def _edge_columns(document: Document) -> list[Column]:
    """Return an edge's ends, the bytes of a micro-batch, and its channel's capacity and transport."""
    edges = document["edges"]
    return [
        name_column("from", (edge["producer"] for edge in edges), _WIDE),
        name_column("to", (edge["consumer"] for edge in edges), _WIDE),
        *direction_columns("{}", units.BINARY, edges, keys="{}_bytes"),
        name_column("between stages", ("yes" if edge["cut"] else "no" for edge in edges), _WIDE),
        text_column("capacity", (edge["capacity"] for edge in edges)),
        text_column("transport", (edge.get("transport") for edge in edges)),
    ]
