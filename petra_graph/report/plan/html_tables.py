"""A page's tables: of columns, each in one unit, or of names and values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from petra_graph.report.plan.document import Document
from petra_graph.report.plan.stage_tables import device_fields, stage_fields
from petra_graph.report.plan.svg import tag
from petra_graph.report.plan.tables import Field, numbers_field, words_field
from petra_graph.report.plan.units import BINARY, COUNT_WORDS, FLOPS, NOTHING, column_of

_WIDE = 120
"""Characters: longer names are cut."""


def stage_table(document: Document) -> Sequence[Field]:
    """Return the stages' columns."""
    return stage_fields(document, _WIDE)


def device_table(document: Document) -> Sequence[Field]:
    """Return the devices' columns."""
    return [field for field in device_fields(document, _WIDE, 1) if not field.styles]


def node_table(document: Document) -> Sequence[Field]:
    """Return the nodes' columns."""
    nodes = document["nodes"]
    unit = column_of(FLOPS, [value for node in nodes for value in node["flops"].values()])
    shapes = [", ".join("x".join(map(str, shape)) for shape in node["outputs"]) for node in nodes]
    return [
        words_field("node", "", [node["name"] for node in nodes], _WIDE),
        words_field("kind", "", [node["kind"] for node in nodes], _WIDE),
        words_field("block", "", [node["block"] for node in nodes], _WIDE),
        Field(head="stage", cells=[str(node["stage"]) for node in nodes], group=""),
        words_field("reads", "", [", ".join(node["inputs"]) for node in nodes], _WIDE),
        words_field("outputs", "", shapes, _WIDE),
        numbers_field("parameters", "", COUNT_WORDS, [node["parameters"] for node in nodes]),
        *(
            numbers_field(verb, "", FLOPS, [node["flops"][verb] for node in nodes], unit)
            for verb in ("forward", "backward")
        ),
    ]


def wire_table(document: Document) -> Sequence[Field]:
    """Return the wires' columns."""
    edges = document["edges"]
    unit = column_of(BINARY, [edge[key] for edge in edges for key in ("forward_bytes", "backward_bytes")])
    slots = [NOTHING if edge["capacity"] is None else str(edge["capacity"]) for edge in edges]
    return [
        words_field("from", "", [edge["producer"] for edge in edges], _WIDE),
        words_field("to", "", [edge["consumer"] for edge in edges], _WIDE),
        *(
            numbers_field(verb, "", BINARY, [edge[f"{verb}_bytes"] for edge in edges], unit)
            for verb in ("forward", "backward")
        ),
        words_field("between stages", "", ["yes" if edge["cut"] else "no" for edge in edges], _WIDE),
        Field(head="capacity", cells=slots, group=""),
    ]


def field_table(fields: Sequence[Field]) -> str:
    """Write columns as a table."""
    kinds = ["left" if field.left else "" for field in fields]
    heads = "".join(tag("th", escape(field.head), class_=kind) for field, kind in zip(fields, kinds, strict=True))
    rows = zip(*(field.cells for field in fields), strict=True)
    body = "".join(tag("tr", _cells(row, kinds)) for row in rows)
    return tag("table", tag("thead", tag("tr", heads)) + tag("tbody", body))


def pair_table(title: str, pairs: Iterable[tuple[str, str]]) -> str:
    """Write names and values as a table with a title."""
    rows = "".join(
        tag("tr", f"{tag('td', escape(name), class_='left')}{tag('td', escape(value))}") for name, value in pairs
    )
    head = f'<thead><tr><th colspan="2" class="left">{escape(title)}</th></tr></thead>'
    return tag("table", head + tag("tbody", rows))


def _cells(row: Iterable[str], kinds: Iterable[str]) -> str:
    return "".join(tag("td", escape(cell), class_=kind) for cell, kind in zip(row, kinds, strict=True))
