"""The drawings of a plan with a row for each stage: memory as bars, the simulated timeline as blocks.

The timeline has two drawings, since one cannot show both: the whole from the start, and several ticks once the pipeline
is full, wide enough to read. Where blocks of the whole would be thinner than a pixel, a row shows the times of forwards
in its upper half and the times of backwards in its lower half.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from petra_graph.program.plan_document import Document
from petra_graph.report.plan.plan_timeline import by_stage, full_from
from petra_graph.report.plan.short_labels import nodes_label, ranges_label, runs
from petra_graph.units import BINARY, noun, seconds
from petra_graph_report.bar_chart import MANY, Bar, bars, row_names
from petra_graph_report.plan.plan_blocks import PART_COLOURS, block_label, end_of, overlapping
from petra_graph_report.svg_drawing import draw_svg, fill_boxes, inks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _BARS = 960.0, 460.0
"""Pixels of a timeline, and of the longest bar."""
_THINNEST, _JOINED = 1.0, 4.0
"""Pixels of a block; and between blocks that are drawn as one where blocks are too thin."""
_DETAIL_TICKS, _DETAIL_TICK_WIDTH = 4, 230.0
_AXIS, _BOTTOM, _SIZE = 22.0, 4.0, 10
_LETTER = 0.62
"""A letter's width over its height, in the mean."""
VERBS = ("forward", "backward", "update")


def stage_bars(document: Document) -> Markup:
    """Draw each stage's memory; where every device holds one stage, against its limit."""
    alone = all(len(device["stages"]) == 1 for device in document["devices"])
    limits = {device["name"]: device["memory_bytes"] for device in document["devices"]} if alone else {}
    named = ((f"{stage['index']}  {nodes_label(stage['nodes'])}", stage) for stage in document["stages"])
    return _memory_bars(((name, stage, limits.get(stage["device"])) for name, stage in named), "memory of stages")


def device_bars(document: Document) -> Markup:
    """Draw each device's memory against its limit."""
    rows = (
        (
            f"{device['name']}  ({noun(len(device['stages']), 'stage')} {ranges_label(device['stages'])})",
            device,
            device["memory_bytes"],
        )
        for device in document["devices"]
    )
    return _memory_bars(rows, "memory of devices")


def _memory_bars(rows: Iterable[tuple[str, Document, int | None]], label: str) -> Markup:
    made = []
    for name, holder, limit in rows:
        parts = [(holder["bytes"].get(part, 0), colour) for part, colour in PART_COLOURS.items()]
        made.append(Bar(name=name, parts=parts, limit=limit))
    return bars(made, BINARY, label, _BARS)


def too_thin(document: Document) -> bool:
    """Return whether the whole has blocks that are thinner than a pixel, so that it shows only their times."""
    blocks = by_stage(document)
    # Updates are a moment anyhow.
    passes = (block for mine in blocks.values() for block in mine if block["verb"] != "update")
    shortest = min((block["end"] - block["start"] for block in passes), default=1.0)
    return bool(shortest * _WIDTH < _THINNEST * (end_of(blocks) or 1.0))


def whole_timeline(document: Document) -> Markup:
    """Draw everything that was simulated."""
    stages = len(document["stages"])
    row = 20.0 if stages <= MANY else max(4.0, 900 / stages)
    end = end_of(by_stage(document)) or 1.0
    return _timeline(document, (0.0, end), _WIDTH, row, joined=too_thin(document))


def full_timeline(document: Document) -> Markup:
    """Draw several ticks from when every stage works."""
    blocks = by_stage(document)
    tick, start = document["timing"]["tick_seconds"], full_from(blocks)
    end = min(start + _DETAIL_TICKS * tick, end_of(blocks))
    if end <= start:
        return Markup()
    width = max(1.0, _DETAIL_TICK_WIDTH * (end - start) / tick)
    return _timeline(document, (start, end), width, 20.0 if len(blocks) <= MANY else 15.0, joined=False)


def _timeline(document: Document, span: tuple[float, float], width: float, row: float, *, joined: bool) -> Markup:
    stages, blocks = document["stages"], by_stage(document)
    names, left = row_names([f"{one['index']}  {one['device']}  {nodes_label(one['nodes'])}" for one in stages], _SIZE)
    every = max(1, round((_SIZE + 3) / row))
    start, end = span
    pixel = (end - start) / width
    halves = joined or overlapping(blocks)
    row *= 1.3 if halves and not joined else 1.0
    labelled = not joined and len(stages) <= MANY
    right = 40.0
    height = row * len(stages) + _AXIS + _BOTTOM

    def draw(figure: Figure) -> None:
        whole = left + width + right
        axis = figure.add_axes((left / whole, _BOTTOM / height, width / whole, 1 - (_AXIS + _BOTTOM) / height))
        axis.set_xlim(start, end)
        axis.set_ylim(len(stages), 0)
        axis.grid(visible=False, axis="y")
        axis.grid(visible=True, axis="x")
        axis.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0, labelsize=_SIZE)
        axis.spines[:].set_visible(False)
        axis.locator_params(axis="x", nbins=max(2, int(width / 160)))
        axis.xaxis.set_major_formatter(lambda value, _: seconds(value) if value else "0")
        axis.set_yticks([at + 0.5 for at in range(len(stages))][::every], names[::every], color=inks()["text"])
        for verb in VERBS[:2] if joined else VERBS:
            boxes: list[tuple[float, float, float, float]] = []
            for at, stage in enumerate(stages):
                mine = [one for one in blocks[stage["index"]] if one["verb"] == verb]
                shown = [one for one in mine if one["end"] > start and one["start"] < end]
                low = at + 0.04 + (0.46 if halves and verb != "forward" else 0)
                tall = 0.92 / (1 + halves)
                found = _join(shown, _JOINED * pixel) if joined else _spans(shown)
                boxes += [(x, low, max(to, x + 0.5 * pixel) - x, tall) for x, to in _within(found, span)]
                if labelled and verb != "update" and row * tall >= _SIZE:
                    _write(axis, shown, span, low + tall / 2, pixel)
            fill_boxes(axis, boxes, inks()[verb], "none" if joined else inks()["ground"])

    label = f"timeline from {seconds(start)} to {seconds(end)}"
    return draw_svg(draw, left + width + right, height, label)


def _spans(blocks: Iterable[Document]) -> list[tuple[float, float]]:
    return [(block["start"], block["end"]) for block in blocks]


def _join(blocks: Iterable[Document], gap: float) -> list[tuple[float, float]]:
    """Return the spans of blocks, those with less than `gap` between them as one."""
    found = runs(_spans(blocks), lambda span, after: after[0] - span[1] < gap)
    return [(run[0][0], run[-1][1]) for run in found]


def _within(spans: Iterable[tuple[float, float]], whole: tuple[float, float]) -> Iterable[tuple[float, float]]:
    return ((max(start, whole[0]), min(end, whole[1])) for start, end in spans)


def _write(axis: Axes, blocks: Sequence[Document], span: tuple[float, float], y: float, pixel: float) -> None:
    """Write the micro-batch of each block into it, where that fits."""
    for block, (start, end) in zip(blocks, _within(_spans(blocks), span), strict=True):
        text = block_label(block)
        if len(text) * _SIZE * _LETTER + 2 < (end - start) / pixel:
            axis.text((start + end) / 2, y, text, ha="center", va="center_baseline", fontsize=_SIZE, color="black")
