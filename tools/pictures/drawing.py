r"""The picture of PETRA's idea: two stages over time, what each keeps, and the messages between them.

    kept      what stage 1 keeps: a bar from a forward to its backward, as high as its bytes
    stage 1   F0 F1       B0    F2 B1 ...
                \  \     /                     messages, as wide as their bytes
    stage 2      F0 B0    F1 B1 ...
    kept      what stage 2 keeps

Decision: the ground is opaque and colours follow the reader's own scheme by a media query, since a page shows the picture
as an image, and neither its style sheet nor its theme reaches inside. Nothing is fetched, nothing runs, nothing moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import frozen
from markupsafe import Markup

from petra_graph.compiler.simulator.simulation import Event
from petra_graph.units import memory
from tools.pictures.kept_activations import KeptActivations, Message, SimulatedTraining
from tools.pictures.svg_markup import tag, text_width, words

WIDTH, HEIGHT = 480, 402
_SHOWN_WIDTH = 640
"""The width at which a page with room shows it."""
_LEFT, _RIGHT = 60, 472
"""Of the time axis."""
_FORWARDS_SHOWN = 22.5
"""The axis' length, in forwards of the first stage."""
_PANEL, _PANEL_HEIGHT = 8, 160
_TITLE, _STRIP, _ROW, _GAP = 24, 36, 21, 26
_STRIP_OF_LAST = 20
_MOST_HEIGHT = 34
"""Pixels for the most bytes that a stage keeps."""
_THINNEST = 1.0
_LABEL, _BLOCK, _SMALL = 13, 12, 11
_WIDEST_MESSAGE = 2.6

_STYLE = """
svg { --ground: #ffffff; --strip: #f1f3f5; --text: #1c2024; --soft: #57606a; --message: #57606a;
  --forward: #2f8fce; --backward: #c27c00; --kept: #c2689a; }
@media (prefers-color-scheme: dark) {
  svg { --ground: #15181c; --strip: #22272d; --text: #e6e9ec; --soft: #a9b2bb; --message: #a9b2bb;
    --forward: #56b4e9; --backward: #e69f00; --kept: #d98cb3; }
}
text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: var(--text); }
.title { font-weight: 700; } .most { font-weight: 700; text-anchor: end; } .row { text-anchor: end; }
.soft { fill: var(--soft); } .block { fill: #000000; text-anchor: middle; } .note { text-anchor: middle; }
.ground { fill: var(--ground); } .strip { fill: var(--strip); }
.forward { fill: var(--forward); } .backward { fill: var(--backward); } .kept { fill: var(--kept); }
.message { stroke: var(--message); fill: none; } .head { fill: var(--message); }
"""

_TITLES = {
    "1f1b-flush": "Backpropagation keeps activations",
    "petra": "PETRA reconstructs activations",
}
_NOTES = {"petra": ("only the input images", "nothing")}
"""What stands in the strips of stages 1 and 2, where bars would be too thin to see."""

_LEGEND_NOTES = (
    "Arrows: activations down, gradients up, in PETRA with the outputs.",
    "Both run 1F1B; backpropagation drains the pipeline for each update.",
)


def picture(trainings: Sequence[SimulatedTraining]) -> str:
    """Return the picture as SVG.

    Args:
        trainings: of one network; one panel each, to one scale of time and one of bytes.
    """
    first = trainings[0].events[0]
    axis = _Axis(pixels_per_second=(_RIGHT - _LEFT) / (_FORWARDS_SHOWN * (first.end - first.start)))
    scale = _MOST_HEIGHT / max(training.most_kept for training in trainings)
    widest = max(message.bytes for training in trainings for message in training.messages)
    parts = [
        tag("style", Markup(_STYLE)),
        tag(
            "title", "Backpropagation keeps activations from forward to backward; PETRA reconstructs them from outputs."
        ),
        tag("rect", width=WIDTH, height=HEIGHT, rx=8, class_="ground"),
    ]
    for place, training in enumerate(trainings):
        parts += _panel(training, _PANEL + place * _PANEL_HEIGHT, axis, scale, _WIDEST_MESSAGE / widest)
    bottom = _PANEL + len(trainings) * _PANEL_HEIGHT - 8
    parts += _legend(bottom + 17, f"Simulated: {trainings[0].source}.")
    box, shown_height = f"0 0 {WIDTH} {HEIGHT}", HEIGHT * _SHOWN_WIDTH / WIDTH
    size = {"width": _SHOWN_WIDTH, "height": shown_height}
    return (
        tag("svg", Markup("\n").join(parts), xmlns="http://www.w3.org/2000/svg", role="img", viewBox=box, **size) + "\n"
    )


@frozen(kw_only=True)
class _Axis:
    """The time axis, which all rows share."""

    pixels_per_second: float

    def x(self, seconds: float) -> float:
        return min(_LEFT + seconds * self.pixels_per_second, _RIGHT)

    def shows(self, seconds: float) -> bool:
        return _LEFT + seconds * self.pixels_per_second < _RIGHT


def _panel(
    training: SimulatedTraining, top: float, axis: _Axis, pixels_per_byte: float, pixels_per_message_byte: float
) -> Iterator[Markup]:
    """Draw one method: a title, the stages' rows with the messages between them, and the strips of what they keep."""
    yield words(_TITLES[training.method], 10, top + 15, class_="title", font_size=_LABEL + 1)
    yield words(f"up to {memory(training.most_kept)} a stage", _RIGHT, top + 15, class_="most", font_size=_LABEL)
    strip = top + _TITLE
    rows = {1: strip + _STRIP + 2, 2: strip + _STRIP + 2 + _ROW + _GAP}
    last_strip = rows[2] + _ROW + 2
    strips = {1: (strip, _STRIP), 2: (last_strip, _STRIP_OF_LAST)}
    for stage, (y, height) in strips.items():
        yield tag("rect", x=_LEFT, y=y, width=_RIGHT - _LEFT, height=height, class_="strip")
        yield words("kept", _LEFT - 6, y + height / 2 + 4, class_="row soft", font_size=_SMALL)
        yield words(f"stage {stage}", _LEFT - 6, rows[stage] + 15, class_="row", font_size=_LABEL)
        kept = [each for each in training.kept if each.stage == stage and axis.shows(each.start)]
        yield from _bars(kept, y if stage == 2 else y + height, axis, pixels_per_byte * (1 if stage == 2 else -1))
        if training.method in _NOTES:
            yield words(
                _NOTES[training.method][stage - 1],
                (_LEFT + _RIGHT) / 2,
                y + height / 2 + 4,
                class_="note soft",
                font_size=_SMALL + 1,
            )
    for message in training.messages:
        if axis.shows(message.received.start):
            yield from _arrow(message, rows, axis, pixels_per_message_byte * message.bytes)
    for event in training.events:
        if event.verb != "update" and axis.shows(event.start):
            yield _block(event, rows[event.stage], axis)


def _block(event: Event, top: float, axis: _Axis) -> Markup:
    """Draw an operation with its name, where that fits before the axis' end."""
    x, end = axis.x(event.start), axis.x(event.end)
    block = tag("rect", x=x + 0.4, y=top, width=end - x - 0.8, height=_ROW, class_=event.verb)
    if text_width(str(event.action), _BLOCK) > end - x:
        return block
    return block + words(str(event.action), (x + end) / 2, top + 15, class_="block", font_size=_BLOCK)


def _bars(kept: Sequence[KeptActivations], base: float, axis: _Axis, pixels_per_byte: float) -> Iterator[Markup]:
    """Stack bars away from the stage's row: each has the lowest place that is free when its forward ends."""
    ends: list[float] = []
    for each in kept:
        place = next((place for place, end in enumerate(ends) if end <= each.start), len(ends))
        ends[place:] = [each.end, *ends[place + 1 :]]
        height = max(_THINNEST, abs(pixels_per_byte) * each.bytes)
        y = base + place * height if pixels_per_byte > 0 else base - (place + 1) * height
        x, end = axis.x(each.start), axis.x(each.end)
        yield tag("rect", x=x, y=y, width=end - x, height=max(height - 1, _THINNEST), class_="kept")
        text = f"for B{each.micro_batch}"
        if height > _SMALL and text_width(text, _SMALL) < end - x:
            yield words(text, (x + end) / 2, y + height / 2 + 3.4, class_="block", font_size=_SMALL)


def _arrow(message: Message, rows: Mapping[int, float], axis: _Axis, width: float) -> Iterator[Markup]:
    """Draw a message from its sender's row to its receiver's."""
    down = message.sent.stage < message.received.stage
    upper, lower = rows[1] + _ROW, rows[2]
    x, y = axis.x(message.sent.end), upper if down else lower
    to_x, to_y = axis.x(message.received.start), (lower if down else upper)
    step = -5 if down else 5
    yield tag("line", x1=x, y1=y, x2=to_x, y2=to_y + step, class_="message", stroke_width=width)
    yield tag("path", d=f"M{to_x:.2f} {to_y:g}l-3.5 {1.4 * step:g}h7z", class_="head")


def _legend(top: float, source: str) -> Iterator[Markup]:
    x = 10.0
    for kind, text in (("forward", "forward"), ("backward", "backward"), ("kept", "kept for a backward")):
        yield tag("rect", x=x, y=top - 10, width=12, height=12, class_=kind)
        yield words(text, x + 17, top, font_size=_LABEL)
        x += 17 + text_width(text, _LABEL) + 16
    yield words("time →", _RIGHT, top, class_="row soft", font_size=_LABEL)
    for line, text in enumerate((*_LEGEND_NOTES, source), start=1):
        yield words(text, 10, top + 17 * line, class_="soft", font_size=_SMALL)
