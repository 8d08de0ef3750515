"""Memory as stacked bars, one a stage or a device, all to one scale."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from attrs import frozen

from petra_graph.report.plan.document import PARTS, Document, parts_of
from petra_graph.report.plan.labels import nodes_label, ranges_label
from petra_graph.report.plan.svg import fitted, svg, tag, title, words
from petra_graph.report.plan.units import BINARY, memory, scale_of

_NAMES, _BARS, _TOTALS = 230, 800, 200
_AXIS = 22
_MANY = 60
_GRID_LINES = 5
_LIMIT_REACH = 1.25
"""A limit further out than this would make the bars short: it stands in words alone."""


@frozen(kw_only=True)
class Row:
    """One bar."""

    name: str
    parts: Mapping[str, int]
    total: int
    limit: int | None = None


def stage_bars(document: Document) -> str:
    """Draw each stage's memory; where every device holds one stage, against its limit."""
    alone = all(len(device["stages"]) == 1 for device in document["devices"])
    limits = {device["name"]: device["memory_bytes"] for device in document["devices"]} if alone else {}
    return bars(
        [
            Row(
                name=f"{stage['index']}  {nodes_label(stage['nodes'])}",
                parts=parts_of(stage["bytes"]),
                total=stage["bytes"]["total"],
                limit=limits.get(stage["device"]),
            )
            for stage in document["stages"]
        ]
    )


def device_bars(document: Document) -> str:
    """Draw each device's memory against its limit."""
    return bars(
        [
            Row(
                name=f"{device['name']}  (stage{'s' * (len(device['stages']) > 1)} {ranges_label(device['stages'])})",
                parts=parts_of(device["bytes"]),
                total=device["bytes"]["total"],
                limit=device["memory_bytes"],
            )
            for device in document["devices"]
        ]
    )


def bars(rows: Sequence[Row]) -> str:
    """Draw bars below each other."""
    few = len(rows) <= _MANY
    height = 22.0 if few else 15.0
    most = max(row.total for row in rows) or 1
    limits = [row.limit for row in rows if row.limit is not None and row.limit <= _LIMIT_REACH * most]
    span = max([most, *limits])
    bottom = _AXIS + height * len(rows)
    parts = [*_grid(span, bottom)]
    for place, row in enumerate(rows):
        parts += _row(row, _AXIS + height * place, height, span, 12 if few else 10)
    label = "memory by what it is for"
    return svg(parts, _NAMES + _BARS + _TOTALS, bottom + 4, class_="bars", role="img", aria_label=label)


def grid_steps(span: float) -> list[float]:
    """Return round values from 0 up to a span, about five of them."""
    unit = scale_of(BINARY, [span]).size
    rough = span / unit / _GRID_LINES
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    return [unit * step * place for place in range(math.floor(span / unit / step * (1 + 1e-9)) + 1)]


def _grid(span: float, bottom: float) -> Iterator[str]:
    for value in grid_steps(span):
        x = _NAMES + _BARS * value / span
        yield tag("line", x1=x, x2=x, y1=_AXIS - 4, y2=bottom, class_="grid")
        yield words(memory(value) if value else "0", x, _AXIS - 8, class_="axis")


def _row(row: Row, top: float, height: float, span: float, size: float) -> Iterator[str]:
    baseline = top + height / 2 + size * 0.36
    yield words(fitted(row.name, _NAMES - 12, size), _NAMES - 8, baseline, class_="row", font_size=size)
    shown = [part for part in PARTS if row.parts[part.key]]
    lines = [f"{part.name}: {memory(row.parts[part.key])}" for part in shown]
    bar = title("\n".join([row.name, *lines, f"total: {memory(row.total)}"]))
    x = float(_NAMES)
    for part in shown:
        width = _BARS * row.parts[part.key] / span
        bar += tag("rect", x=x, y=top + 2, width=width, height=height - 4, fill=part.colour)
        x += width
    yield tag("g", bar)
    text, over = memory(row.total), row.limit is not None and row.total > row.limit
    if row.limit is not None:
        text += f" of {memory(row.limit)}"
        if row.limit <= span:
            at = _NAMES + _BARS * row.limit / span
            yield tag("line", x1=at, x2=at, y1=top, y2=top + height, class_="limit")
            x = max(x, at) if at - x < len(text) * size * 0.6 else x
    yield words(text, x + 6, baseline, class_="over" if over else "total", font_size=size)
