"""The simulated timeline as a drawing: a row a stage, a block for each forward, backward and update.

Two drawings tell what one cannot: the whole from the start, and several ticks once the pipeline is full, wide enough to read.
Where blocks of the whole would be thinner than a pixel, a row shows forwards in its upper half and backwards in its
lower half, wherever there are any.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from attrs import frozen

from petra_graph.report.plan.document import Document, stages_by_index
from petra_graph.report.plan.labels import nodes_label
from petra_graph.report.plan.svg import fitted, svg, tag, text_width, title, words
from petra_graph.report.plan.timeline import by_stage, end_of, full_from, overlapping
from petra_graph.report.plan.units import SECONDS, scale_of, seconds

_LETTERS = {"forward": "F", "backward": "B", "update": "U"}
_NAMES, _WIDTH = 220, 960
_AXIS = 22
_THINNEST = 1.0
_LABELLED = 16.0
"""Blocks so wide have labels in the whole drawing too."""
_JOINED = 4.0
"""Pixels between blocks that are drawn as one where blocks are too thin."""
_MANY = 60
_DETAIL_TICKS = 6
_DETAIL_TICK_WIDTH = 230
_SIZE = 10


@frozen(kw_only=True)
class Window:
    """A stretch of time, and how it is drawn."""

    start: float
    end: float
    width: float
    row: float
    """A row's height."""
    labels: bool
    """Blocks name their micro-batch where that fits."""
    halves: bool
    """Forwards have the upper half of a row, all else the lower: they overlap."""

    def x(self, at: float) -> float:
        """Return where a time is."""
        return self.width * (min(max(at, self.start), self.end) - self.start) / (self.end - self.start)


Draw = Callable[[Sequence[Document], Window, float], Iterator[str]]
"""Draws a stage's blocks in a window at a height."""


def too_thin(document: Document) -> bool:
    """Tell whether the whole has blocks that are thinner than a pixel, so that it shows only where they are."""
    return _thinnest_pixels(by_stage(document)) < _THINNEST


def whole_timeline(document: Document) -> str:
    """Draw everything that was simulated."""
    blocks = by_stage(document)
    row = 22.0 if len(blocks) <= _MANY else max(4.0, 900 / len(blocks))
    thinnest = _thinnest_pixels(blocks)
    window = Window(
        start=0.0,
        end=end_of(blocks) or 1.0,
        width=_WIDTH,
        row=row,
        labels=thinnest > _LABELLED,
        halves=overlapping(blocks),
    )
    return _drawing(document, window, _presence if thinnest < _THINNEST else _blocks, blocks)


def full_timeline(document: Document) -> str:
    """Draw several ticks from when every stage works."""
    blocks = by_stage(document)
    tick, start = document["timing"]["tick_seconds"], full_from(blocks)
    end = min(start + _DETAIL_TICKS * tick, end_of(blocks))
    if end <= start:
        return ""
    width = max(1.0, _DETAIL_TICK_WIDTH * (end - start) / tick)
    row = 22.0 if len(blocks) <= _MANY else 16.0
    return _drawing(
        document,
        Window(start=start, end=end, width=width, row=row, labels=True, halves=overlapping(blocks)),
        _blocks,
        blocks,
    )


def _thinnest_pixels(blocks: Mapping[int, Sequence[Document]]) -> float:
    """Return how wide the shortest forward or backward is in the whole: updates are a moment anyhow."""
    passes = (block for mine in blocks.values() for block in mine if block["verb"] != "update")
    shortest = min((block["end"] - block["start"] for block in passes), default=1.0)
    return shortest * _WIDTH / (end_of(blocks) or 1.0)


def _drawing(document: Document, window: Window, draw: Draw, blocks: Mapping[int, Sequence[Document]]) -> str:
    """Put the names beside the rows, so that they stay where they are when the rows are scrolled."""
    bottom = _AXIS + window.row * len(blocks)
    rows = [*_grid(window, bottom)]
    for place, mine in enumerate(blocks.values()):
        rows += draw(mine, window, _AXIS + window.row * place)
    names = svg(_row_names(document, window.row), _NAMES, bottom + 4, class_="names")
    label = f"timeline from {seconds(window.start)} to {seconds(window.end)}"
    drawn = svg(rows, window.width + 60, bottom + 4, class_="time", role="img", aria_label=label)
    return tag("div", names + drawn, class_="beside")


def _row_names(document: Document, row: float) -> Iterator[str]:
    every = max(1, math.ceil((_SIZE + 2) / row))
    yield tag("rect", x=0, y=0, width=_NAMES, height=_AXIS + row * len(document["stages"]) + 4, class_="under")
    for place, (index, stage) in enumerate(stages_by_index(document).items()):
        if place % every == 0:
            text = fitted(f"{index}  {stage['device']}  {nodes_label(stage['nodes'])}", _NAMES - 12, _SIZE)
            yield words(text, _NAMES - 8, _AXIS + row * (place + 0.5) + 3.5, class_="row", font_size=_SIZE)


def _blocks(mine: Sequence[Document], window: Window, top: float) -> Iterator[str]:
    """Draw each block, with its micro-batch where that fits."""
    for block in mine:
        if block["end"] <= window.start or block["start"] >= window.end:
            continue
        verb = block["verb"]
        x = window.x(block["start"])
        width = max(window.x(block["end"]) - x, 0.5)
        gap = 1.0 if window.row > _SIZE else 0.3
        height = (window.row - 2 * gap) / (1 + window.halves)
        y = top + gap + height * (window.halves and verb != "forward")
        label = f"{_LETTERS[verb]}{block['micro_batch']}"
        fits = window.labels and verb != "update" and height > _SIZE and text_width(label, _SIZE) < width - 2
        text = words(label, x + width / 2, y + height / 2 + 3.5, class_="label") if fits else ""
        about = title(f"{verb} of {block['micro_batch']}, stage {block['stage']}\n{_when(block)}")
        yield tag("g", about + tag("rect", x=x, y=y, width=width, height=height, class_=verb) + text)


def _when(block: Document) -> str:
    return f"{seconds(block['start'])} to {seconds(block['end'])}: {seconds(block['end'] - block['start'])}"


def _presence(mine: Sequence[Document], window: Window, top: float) -> Iterator[str]:
    """Draw where forwards and backwards are, each in its half, neighbours joined."""
    for verb, part in (("forward", 0.0), ("backward", 0.5)):
        runs: list[list[float]] = []
        for block in (block for block in mine if block["verb"] == verb):
            start, end = window.x(block["start"]), window.x(block["end"])
            if runs and start - runs[-1][1] < _JOINED:
                runs[-1][1] = end
            else:
                runs.append([start, end])
        y, height = top + window.row * part, window.row / 2 - 0.2
        path = "".join(
            f"M{start:.1f} {y:.1f}H{max(end, start + 0.5):.1f}v{height:.1f}H{start:.1f}z" for start, end in runs
        )
        yield tag("path", d=path, class_=verb)


def _grid(window: Window, bottom: float) -> Iterator[str]:
    unit = scale_of(SECONDS, [window.end - window.start]).size
    rough = (window.end - window.start) / unit / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = unit * next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first, last = math.ceil(window.start / step - 1e-9), math.floor(window.end / step + 1e-9)
    for value in range(first, last + 1):
        x = window.x(value * step)
        yield tag("line", x1=x, x2=x, y1=_AXIS - 4, y2=bottom, class_="grid")
        yield words(seconds(value * step) if value else "0", x, _AXIS - 8, class_="axis first" if x < _SIZE else "axis")
