"""The charts of a plan, all drawn with a row a stage: memory as stacked bars, the simulated timeline as blocks.

Bars are to one scale. The timeline has two drawings, since one cannot show both: the whole from the start, and several
ticks once the pipeline is full, wide enough to read. Where blocks of the whole would be thinner than a pixel, a row
shows the times of forwards in its upper half and the times of backwards in its lower half.

Decision: not matplotlib, which is optional here and draws the figures of runs: its SVG carries no text for a
pointer's rest, and no colours that follow the page between light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from attrs import frozen
from markupsafe import Markup

from petra_graph.program.plan_document import Document
from petra_graph.report.drawing.svg_markup import (
    AXIS,
    ROW_NAME_MARGINS,
    axis,
    axis_values,
    line,
    row_name,
    svg,
    tag,
    text_width,
    title,
    words,
)
from petra_graph.report.plan.plan_contents import (
    MEMORY_PARTS,
    block_label,
    by_stage,
    bytes_by_part,
    end_of,
    full_from,
    overlapping,
)
from petra_graph.report.plan.short_labels import nodes_label, ranges_label, runs
from petra_graph.units import BINARY, SECONDS, memory, one_line, seconds

_WIDEST_NAMES = 230
"""Pixels for the names of the rows, at most."""
_MANY = 60
"""So many rows are drawn high."""
_GRID_LINES = 5

_BARS, _TOTALS = 800, 200
_LIMIT_REACH = 1.25
"""A limit further out than this would make the bars short: it stands in words alone."""

_WIDTH = 960
_THINNEST = 1.0
_JOINED = 4.0
"""Pixels between blocks that are drawn as one where blocks are too thin."""
_DETAIL_TICKS, _DETAIL_TICK_WIDTH = 6, 230
_SIZE = 10


@frozen
class Bar:
    """The memory of a stage or of a device, in bytes."""

    name: str
    counts: Mapping[str, int]
    """By part, with the total."""
    limit: int | None = None


def stage_bars(document: Document) -> Markup:
    """Draw each stage's memory; where every device holds one stage, against its limit."""
    alone = all(len(device["stages"]) == 1 for device in document["devices"])
    limits = {device["name"]: device["memory_bytes"] for device in document["devices"]} if alone else {}
    return bars(
        [
            Bar(f"{stage['index']}  {nodes_label(stage['nodes'])}", stage["bytes"], limits.get(stage["device"]))
            for stage in document["stages"]
        ]
    )


def device_bars(document: Document) -> Markup:
    """Draw each device's memory against its limit."""
    rows = []
    for device in document["devices"]:
        stages = f"stage{'s' * (len(device['stages']) > 1)} {ranges_label(device['stages'])}"
        rows.append(Bar(f"{device['name']}  ({stages})", device["bytes"], device["memory_bytes"]))
    return bars(rows)


def bars(rows: Sequence[Bar]) -> Markup:
    """Draw bars below each other."""
    height, size = (22.0, 12) if len(rows) <= _MANY else (15.0, 10)
    most = max(row.counts["total"] for row in rows) or 1
    limits = [row.limit for row in rows if row.limit is not None and row.limit <= _LIMIT_REACH * most]
    span = max([most, *limits])
    bottom = AXIS + height * len(rows)
    values = axis_values(0, span, BINARY, _GRID_LINES)
    parts = [*axis(values, lambda value: _BARS * value / span, bottom, BINARY)]
    names = []
    for place, row in enumerate(rows):
        top = AXIS + height * place
        names.append((row.name, _baseline(top, height, size)))
        parts += _bar(row, top, height, span, size)
    drawn = svg(parts, _BARS + _TOTALS, bottom + 4, class_="bars", role="img", aria_label="memory by part")
    return _beside(names, size, bottom + 4, drawn)


def _baseline(top: float, height: float, size: float) -> float:
    """Return the baseline of a text in the middle of a row."""
    return top + height / 2 + size * 0.36


def _beside(names: Sequence[tuple[str, float]], size: float, height: float, drawing: Markup) -> Markup:
    """Put rows' names, each with its baseline, beside a drawing, so that they stay where they are when it is scrolled.

    Where a narrow page takes width from the names, their beginnings are cut.
    """
    width = min(_WIDEST_NAMES, max(text_width(one_line(name), size) for name, _ in names) + ROW_NAME_MARGINS)
    under = tag("rect", x=0, y=0, width=width, height=height, class_="under")
    column = [under, *(row_name(name, width, baseline, size) for name, baseline in names)]
    written = svg(column, width, height, class_="names", preserveAspectRatio="xMaxYMid slice")
    return tag("div", written, drawing, class_="beside")


def _bar(row: Bar, top: float, height: float, span: float, size: float) -> Iterator[Markup]:
    total = row.counts["total"]
    counts = bytes_by_part(row.counts)
    shown = [part for part in MEMORY_PARTS if counts[part.key]]
    lines = [f"{part.name}: {memory(counts[part.key])}" for part in shown]
    bar = title("\n".join([row.name, *lines, f"total: {memory(total)}"]))
    x = 0.0
    for part in shown:
        width = _BARS * counts[part.key] / span
        bar += tag("rect", x=x, y=top + 2, width=width, height=height - 4, fill=part.colour)
        x += width
    # Some parts' colours are near the page's: the outline shows where the bar ends.
    yield tag("g", bar + tag("rect", x=0, y=top + 2, width=x, height=height - 4, class_="outline"))
    text, kind = memory(total), "total"
    if row.limit is not None:
        text += f" of {memory(row.limit)}"
        kind = "over" if total > row.limit else "total"
        if row.limit <= span:
            at = _BARS * row.limit / span
            yield line(at, top, top + height, "limit")
            x = max(x, at) if at - x < len(text) * size * 0.6 else x
    yield words(text, x + 6, _baseline(top, height, size), class_=kind, font_size=size)


@frozen(kw_only=True)
class Viewport:
    """A span of time, in seconds, and how it is drawn, in pixels."""

    start: float
    end: float
    width: float
    row: float
    """A row's height."""
    halves: bool
    """Forwards have the upper half of a row, backwards and updates the lower, since they overlap."""

    def x(self, at: float) -> float:
        """Return a time's place, in pixels."""
        return self.width * (min(max(at, self.start), self.end) - self.start) / (self.end - self.start)


def too_thin(document: Document) -> bool:
    """Return whether the whole has blocks that are thinner than a pixel, so that it shows only their times."""
    blocks = by_stage(document)
    # Updates are a moment anyhow.
    passes = (block for mine in blocks.values() for block in mine if block["verb"] != "update")
    shortest = min((block["end"] - block["start"] for block in passes), default=1.0)
    return bool(shortest * _WIDTH < _THINNEST * (end_of(blocks) or 1.0))


def whole_timeline(document: Document) -> Markup:
    """Draw everything that was simulated."""
    blocks = by_stage(document)
    row = 22.0 if len(blocks) <= _MANY else max(4.0, 900 / len(blocks))
    view = Viewport(start=0.0, end=end_of(blocks) or 1.0, width=_WIDTH, row=row, halves=overlapping(blocks))
    return _drawing(document, view, _presence if too_thin(document) else _blocks)


def full_timeline(document: Document) -> Markup:
    """Draw several ticks from when every stage works."""
    blocks = by_stage(document)
    tick, start = document["timing"]["tick_seconds"], full_from(blocks)
    end = min(start + _DETAIL_TICKS * tick, end_of(blocks))
    if end <= start:
        return Markup()
    width = max(1.0, _DETAIL_TICK_WIDTH * (end - start) / tick)
    row = 22.0 if len(blocks) <= _MANY else 16.0
    view = Viewport(start=start, end=end, width=width, row=row, halves=overlapping(blocks))
    return _drawing(document, view, _blocks)


def _drawing(document: Document, view: Viewport, draw: Callable[..., Iterator[Markup]]) -> Markup:
    """Draw the rows of all stages, with their names."""
    blocks, names = by_stage(document), []
    bottom = AXIS + view.row * len(blocks)
    rows = [*axis(axis_values(view.start, view.end, SECONDS, _GRID_LINES), view.x, bottom, SECONDS)]
    every = max(1, math.ceil((_SIZE + 2) / view.row))
    for place, stage in enumerate(document["stages"]):
        top = AXIS + view.row * place
        rows += draw(blocks[stage["index"]], view, top)
        if place % every == 0:
            name = f"{stage['index']}  {stage['device']}  {nodes_label(stage['nodes'])}"
            names.append((name, _baseline(top, view.row, _SIZE)))
    label = f"timeline from {seconds(view.start)} to {seconds(view.end)}"
    drawn = svg(rows, view.width + 60, bottom + 4, class_="time", role="img", aria_label=label)
    return _beside(names, _SIZE, bottom + 4, drawn)


def _blocks(mine: Sequence[Document], view: Viewport, top: float) -> Iterator[Markup]:
    """Draw each block, with its micro-batch where that fits."""
    for block in mine:
        if block["end"] <= view.start or block["start"] >= view.end:
            continue
        verb = block["verb"]
        x = view.x(block["start"])
        width = max(view.x(block["end"]) - x, 0.5)
        gap = 1.0 if view.row > _SIZE else 0.3
        height = (view.row - 2 * gap) / (1 + view.halves)
        y = top + gap + height * (view.halves and verb != "forward")
        label = block_label(block)
        fits = verb != "update" and height > _SIZE and text_width(label, _SIZE) < width - 2
        text = words(label, x + width / 2, y + height / 2 + 3.5, class_="label") if fits else Markup()
        when = f"{seconds(block['start'])} to {seconds(block['end'])}: {seconds(block['end'] - block['start'])}"
        about = title(f"{verb} of {block['micro_batch']}, stage {block['stage']}\n{when}")
        yield tag("g", about, tag("rect", x=x, y=y, width=width, height=height, class_=verb), text)


def _presence(mine: Sequence[Document], view: Viewport, top: float) -> Iterator[Markup]:
    """Draw the times of forwards and of backwards, each in its half of the row, neighbours joined."""
    for verb, part in (("forward", 0.0), ("backward", 0.5)):
        spans = [(view.x(block["start"]), view.x(block["end"])) for block in mine if block["verb"] == verb]
        y, height = top + view.row * part, view.row / 2 - 0.2
        path = ""
        for run in runs(spans, lambda span, after: after[0] - span[1] < _JOINED):
            start, end = run[0][0], run[-1][1]
            path += f"M{start:.1f} {y:.1f}H{max(end, start + 0.5):.1f}v{height:.1f}H{start:.1f}z"
        yield tag("path", d=path, class_=verb)
