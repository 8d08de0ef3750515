"""The drawings of a plan with a row for each stage: memory as stacked bars, the simulated timeline as blocks.

Bars are to one scale. The timeline has two drawings, since one cannot show both: the whole from the start, and several
ticks once the pipeline is full, wide enough to read. Where blocks of the whole would be thinner than a pixel, a row
shows the times of forwards in its upper half and the times of backwards in its lower half.

Decision: not matplotlib, which is optional here and draws the paper's figures: its SVG carries no text for a pointer's
rest, and no colours that follow the page between light and dark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from attrs import frozen
from markupsafe import Markup

from petra_graph.program.plan_document import Document
from petra_graph.report.drawing.named_rows import MANY, Bar, Rows, bars, beside
from petra_graph.report.drawing.svg_markup import Drawing, tag, text_width, title, words
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
from petra_graph.units import BINARY, SECONDS, noun, seconds

_WIDTH = 960
_THINNEST = 1.0
_JOINED = 4.0
"""Pixels between blocks that are drawn as one where blocks are too thin."""
_DETAIL_TICKS, _DETAIL_TICK_WIDTH = 6, 230
_SIZE = 10


def stage_bars(document: Document) -> tuple[Drawing, Drawing]:
    """Draw each stage's memory, names and bars; where every device holds one stage, against its limit."""
    alone = all(len(device["stages"]) == 1 for device in document["devices"])
    limits = {device["name"]: device["memory_bytes"] for device in document["devices"]} if alone else {}
    return _memory_bars((stage_name(stage), stage, limits.get(stage["device"])) for stage in document["stages"])


def device_bars(document: Document) -> tuple[Drawing, Drawing]:
    """Draw each device's memory against its limit, names and bars."""
    return _memory_bars(
        (
            f"{device['name']}  ({noun(len(device['stages']), 'stage')} {ranges_label(device['stages'])})",
            device,
            device["memory_bytes"],
        )
        for device in document["devices"]
    )


def _memory_bars(rows: Iterable[tuple[str, Document, int | None]]) -> tuple[Drawing, Drawing]:
    drawn = []
    for name, holder, limit in rows:
        counts = bytes_by_part(holder["bytes"])
        parts = [(part.name, counts[part.key], part.colour) for part in MEMORY_PARTS]
        drawn.append(Bar(name=name, parts=parts, total=holder["bytes"]["total"], limit=limit))
    return bars(drawn, BINARY, "memory by part")


def time_bars(document: Document) -> tuple[Drawing, Drawing]:
    """Draw the seconds that each stage works on a micro-batch, names and bars."""
    drawn = []
    for stage in document["stages"]:
        spent = [(verb, stage["seconds"][verb], f"var(--{verb})") for verb in ("forward", "backward")]
        drawn.append(Bar(name=stage_name(stage), parts=spent, total=sum(each for _, each, _ in spent)))
    return bars(drawn, SECONDS, "time of a micro-batch")


def stage_name(stage: Document) -> str:
    return f"{stage['index']}  {nodes_label(stage['nodes'])}"


@frozen(kw_only=True)
class Viewport:
    """A span of time, in seconds, and how it is drawn, in pixels."""

    start: float
    end: float
    width: float
    row: float
    """The height of a row."""
    halves: bool
    """Whether forwards have the upper half of a row, backwards and updates the lower, since they overlap."""

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
    row = 22.0 if len(blocks) <= MANY else max(4.0, 900 / len(blocks))
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
    row = 22.0 if len(blocks) <= MANY else 16.0
    view = Viewport(start=start, end=end, width=width, row=row, halves=overlapping(blocks))
    return _drawing(document, view, _blocks)


def _drawing(document: Document, view: Viewport, draw: Callable[..., Iterator[Markup]]) -> Markup:
    """Draw the rows of all stages, with their names."""
    blocks, stages = by_stage(document), document["stages"]
    names = [f"{stage['index']}  {stage['device']}  {nodes_label(stage['nodes'])}" for stage in stages]
    rows = Rows(names=names, height=view.row, size=_SIZE)
    content = (part for at, stage in enumerate(stages) for part in draw(blocks[stage["index"]], view, rows.top(at)))
    return beside(
        rows.drawn(
            content,
            span=(view.start, view.end),
            units=SECONDS,
            x_of=view.x,
            width=view.width + 60,
            kind="time",
            label=f"timeline from {seconds(view.start)} to {seconds(view.end)}",
        )
    )


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
