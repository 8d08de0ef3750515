"""Memory as stacked bars, one a stage or a device, all to one scale."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import frozen

from petra_graph.program.plan_document import Document
from petra_graph.report.plan.document import MEMORY_PARTS, bytes_by_part
from petra_graph.report.plan.labels import nodes_label, ranges_label
from petra_graph.report.plan.svg import AXIS, axis, axis_values, line, row_name, svg, tag, title, words
from petra_graph.report.plan.units import BINARY, memory

_NAMES, _BARS, _TOTALS = 230, 800, 200
_MANY = 60
_GRID_LINES = 5
_LIMIT_REACH = 1.25
"""A limit further out than this would make the bars short: it stands in words alone."""


@frozen
class Bar:
    """The memory of a stage or of a device, in bytes."""

    name: str
    counts: Mapping[str, int]
    """By part, with the total."""
    limit: int | None = None


def stage_bars(document: Document) -> str:
    """Draw each stage's memory; where every device holds one stage, against its limit."""
    alone = all(len(device["stages"]) == 1 for device in document["devices"])
    limits = {device["name"]: device["memory_bytes"] for device in document["devices"]} if alone else {}
    return bars(
        [
            Bar(f"{stage['index']}  {nodes_label(stage['nodes'])}", stage["bytes"], limits.get(stage["device"]))
            for stage in document["stages"]
        ]
    )


def device_bars(document: Document) -> str:
    """Draw each device's memory against its limit."""
    rows = []
    for device in document["devices"]:
        stages = f"stage{'s' * (len(device['stages']) > 1)} {ranges_label(device['stages'])}"
        rows.append(Bar(f"{device['name']}  ({stages})", device["bytes"], device["memory_bytes"]))
    return bars(rows)


def bars(rows: Sequence[Bar]) -> str:
    """Draw bars below each other."""
    height, size = (22.0, 12) if len(rows) <= _MANY else (15.0, 10)
    most = max(row.counts["total"] for row in rows) or 1
    limits = [row.limit for row in rows if row.limit is not None and row.limit <= _LIMIT_REACH * most]
    span = max([most, *limits])
    bottom = AXIS + height * len(rows)
    values = axis_values(0, span, BINARY, _GRID_LINES)
    parts = [*axis(values, lambda value: _NAMES + _BARS * value / span, bottom, BINARY)]
    for place, row in enumerate(rows):
        parts += _bar(row, AXIS + height * place, height, span, size)
    label = "memory by part"
    return svg(parts, _NAMES + _BARS + _TOTALS, bottom + 4, class_="bars", role="img", aria_label=label)


def _bar(row: Bar, top: float, height: float, span: float, size: float) -> Iterator[str]:
    baseline, total = top + height / 2 + size * 0.36, row.counts["total"]
    yield row_name(row.name, _NAMES, baseline, size)
    counts = bytes_by_part(row.counts)
    shown = [part for part in MEMORY_PARTS if counts[part.key]]
    lines = [f"{part.name}: {memory(counts[part.key])}" for part in shown]
    bar = title("\n".join([row.name, *lines, f"total: {memory(total)}"]))
    x = float(_NAMES)
    for part in shown:
        width = _BARS * counts[part.key] / span
        bar += tag("rect", x=x, y=top + 2, width=width, height=height - 4, fill=part.colour)
        x += width
    yield tag("g", bar)
    text, kind = memory(total), "total"
    if row.limit is not None:
        text += f" of {memory(row.limit)}"
        kind = "over" if total > row.limit else "total"
        if row.limit <= span:
            at = _NAMES + _BARS * row.limit / span
            yield line(at, top, top + height, "limit")
            x = max(x, at) if at - x < len(text) * size * 0.6 else x
    yield words(text, x + 6, baseline, class_=kind, font_size=size)
