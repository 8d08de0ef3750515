"""The columns of the tables of stages, devices, nodes and edges, for terminals and for pages."""

from __future__ import annotations

from petra_graph.program.plan_document import Document
from petra_graph.report.plan.document import parts_held
from petra_graph.report.plan.labels import nodes_label, ranges_label, shapes_label
from petra_graph.report.plan.tables import Column, bar, direction_columns, name_column, number_column, text_column
from petra_graph.report.plan.units import BINARY, COUNT_WORDS, FLOPS, SECONDS, memory, number, percent

_KIND_STYLES = {"reversible": "green", "buffered": "yellow", "head": "cyan"}
_BAR_STYLES = {False: "blue", True: "bold red"}
_KIND_WIDTH, _TYPE_WIDTH, _RANGES_WIDTH, _DEVICE_WIDTH = 16, 16, 16, 18


def stage_columns(document: Document, node_width: int) -> list[Column]:
    """Return a stage's nodes and device, its work, the bytes that it sends, and the bytes that it holds."""
    stages = document["stages"]
    kinds = [stage["kind"] for stage in stages]
    totals = [stage["bytes"]["total"] for stage in stages]
    unit = BINARY.column(totals)
    return [
        text_column("stage", (stage["index"] for stage in stages)),
        name_column("nodes", (nodes_label(stage["nodes"]) for stage in stages), node_width),
        name_column("kind", kinds, _KIND_WIDTH, "place", [_KIND_STYLES.get(kind, "") for kind in kinds]),
        name_column("device", (stage["device"] for stage in stages), _DEVICE_WIDTH, "place"),
        text_column("depth", (stage["depth"] for stage in stages), "place"),
        text_column("stale\nupdates", (stage["staleness"] for stage in stages), "place", number),
        number_column("parameters", COUNT_WORDS, [stage["parameters"] for stage in stages], "place"),
        *direction_columns("{}", SECONDS, [stage["seconds"] for stage in stages], "work"),
        *direction_columns("{}", FLOPS, [stage["flops"] for stage in stages], "work"),
        *direction_columns("sent\n{}", BINARY, [stage["channel_bytes"] for stage in stages], "sent"),
        *(
            number_column(part.name.replace(" ", "\n"), BINARY, values, "memory", unit)
            for part, values in parts_held(stage["bytes"] for stage in stages).items()
        ),
        number_column("memory\ntotal", BINARY, totals, "memory", unit),
    ]


def device_columns(document: Document, name_width: int, bar_cells: int) -> list[Column]:
    """Return a device's work and its memory, with a bar: of its limit, or of the fullest device's memory.

    Args:
        document: the plan.
        name_width: longer names are cut.
        bar_cells: length of the bars, in characters; 0: no bars.
    """
    devices = document["devices"]
    used = [device["bytes"]["total"] for device in devices]
    limits = [device["memory_bytes"] for device in devices]
    over = [limit is not None and use > limit for use, limit in zip(used, limits, strict=True)]
    columns = [
        name_column("device", (device["name"] for device in devices), name_width),
        name_column("type", (device["type"] for device in devices), _TYPE_WIDTH, "work"),
        name_column("stages", (ranges_label(device["stages"]) for device in devices), _RANGES_WIDTH, "work"),
        number_column("busy\na tick", SECONDS, [device["busy_seconds_per_tick"] for device in devices], "work"),
        text_column("busy", (device["utilisation"] for device in devices), "work", percent),
    ]
    if bar_cells:
        bars = [bar(use / (limit or max(used) or 1), bar_cells) for use, limit in zip(used, limits, strict=True)]
        columns.append(name_column("memory", bars, bar_cells, "memory", [_BAR_STYLES[full] for full in over]))
    columns.append(number_column("used", BINARY, used, "memory"))
    if any(limit is not None for limit in limits):
        texts = ["none" if limit is None else memory(limit) for limit in limits]
        marks = [f"{text}, too little" if full else text for text, full in zip(texts, over, strict=True)]
        columns.append(text_column("limit", marks, "memory"))
    return columns


def node_columns(document: Document, width: int) -> list[Column]:
    """Return a node's kind, block and stage, its inputs and outputs, its parameters and its work."""
    nodes = document["nodes"]
    return [
        name_column("node", (node["name"] for node in nodes), width),
        name_column("kind", (node["kind"] for node in nodes), width),
        name_column("block", (node["block"] for node in nodes), width),
        text_column("stage", (node["stage"] for node in nodes)),
        name_column("reads", (", ".join(node["inputs"]) for node in nodes), width),
        name_column("outputs", map(shapes_label, nodes), width),
        number_column("parameters", COUNT_WORDS, [node["parameters"] for node in nodes]),
        *direction_columns("{}", FLOPS, [node["flops"] for node in nodes]),
    ]


def edge_columns(document: Document, width: int) -> list[Column]:
    """Return an edge's ends, the bytes of a micro-batch, and its channel's capacity."""
    edges = document["edges"]
    return [
        name_column("from", (edge["producer"] for edge in edges), width),
        name_column("to", (edge["consumer"] for edge in edges), width),
        *direction_columns("{}", BINARY, edges, keys="{}_bytes"),
        name_column("between stages", ("yes" if edge["cut"] else "no" for edge in edges), width),
        text_column("capacity", (edge["capacity"] for edge in edges)),
    ]
