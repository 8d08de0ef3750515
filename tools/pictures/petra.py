"""The picture at the top of README: two stages over time under two methods, and the activations that each keeps.

    python -m tools.pictures.petra

Everything in it comes from two plans of `two_stages.toml`: operations from their timelines, bytes from their memory models,
busy time from their utilisation. A stage keeps so many bytes for each micro-batch whose forward has ended and whose
backward has not. The first part of PETRA's backward, the reconstruction, is as long as it takes longer than the backward
of a stage that has kept its activations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from attrs import frozen
from markupsafe import Markup

from petra_graph.planning.plan import plan
from petra_graph.report.plan.svg import tag
from petra_graph.report.plan.units import memory, percent

FOLDER = Path(__file__).parent
PICTURE = FOLDER / "petra.svg"
SPEC = FOLDER / "two_stages.toml"

WIDTH, LEFT, RIGHT = 880, 72, 116
ROW, GAP, STRIP, TITLE = 34, 22, 30, 46
SPACE = 20
"""Between the panels."""
HEIGHT = 2 * (TITLE + 2 * (ROW + STRIP) + GAP) + 2 * SPACE + 34
SECONDS = 0.092
"""Of time that the picture shows."""

STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #1c2024; }
.title { font-size: 16px; font-weight: 600; } .soft { fill: #5c6670; } .end { text-anchor: end; }
.in { text-anchor: middle; font-size: 12px; font-weight: 600; fill: #10151a; }
.forward { fill: #56b4e9; } .reconstruct { fill: #f5cf7a; } .backward { fill: #e69f00; }
.lane { fill: #eef1f4; } .kept { fill: #cc4778; } .base { stroke: #aab3bc; }
.message { stroke: #5c6670; stroke-width: 1.2; fill: none; marker-end: url(#head); } .head { fill: #5c6670; }
.now { stroke: #1c2024; stroke-width: 1.5; opacity: 0; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6e9ec; } .soft { fill: #a0a9b2; } .in { fill: #10151a; }
  .lane { fill: #262c33; } .kept { fill: #e06a98; } .base { stroke: #56606a; }
  .message { stroke: #a0a9b2; } .head { fill: #a0a9b2; } .now { stroke: #e6e9ec; }
}
@media (prefers-reduced-motion: no-preference) {
  .now { opacity: 0.75; animation: pass 12s linear infinite; }
  @keyframes pass { to { transform: translateX(TRAVELpx); } }
}
"""


@frozen(kw_only=True)
class Panel:
    """One method's two stages."""

    title: str
    text: str
    document: dict[str, Any]
    reconstruct_seconds: tuple[float, ...]
    """Of each stage's backward."""

    @property
    def events(self) -> list[dict[str, Any]]:
        """Forwards and backwards that begin in the time shown."""
        timeline = self.document["timeline"]
        return [event for event in timeline if event["verb"] != "update" and event["start"] < SECONDS]

    def kept(self, stage: int) -> tuple[float, list[tuple[float, float]]]:
        """Return the bytes that a stage keeps at most, and from each moment on."""
        found = self.document["stages"][stage - 1]
        most = found["bytes"]["graphs"] + found["bytes"]["input_buffer"]
        each = most / found["depth"]
        steps, now = [(0.0, 0.0)], 0.0
        changes = [
            (event["end"], each if event["verb"] == "forward" else -each)
            for event in self.events
            if event["stage"] == stage
        ]
        for moment, change in sorted(changes):
            now += change
            steps.append((moment, now))
        return most, steps


@click.command()
def main() -> None:
    """Draw the picture."""
    PICTURE.write_text(picture(), encoding="utf-8")


def panels() -> tuple[Panel, Panel]:
    """Return both methods, planned."""
    gpipe, petra = (
        plan(str(SPEC), [f"method.name={name}", *more]).document(with_timeline=True) for name, more in METHODS
    )
    longer = tuple(
        one["seconds"]["backward"] - other["seconds"]["backward"]
        for one, other in zip(petra["stages"], gpipe["stages"], strict=True)
    )
    return (
        Panel(
            title="Pipelined backpropagation (GPipe)",
            text="Stages keep all activations until the backward, and wait while the pipeline fills and drains.",
            document=gpipe,
            reconstruct_seconds=(0.0, 0.0),
        ),
        Panel(
            title="PETRA",
            text="Stages reconstruct activations from their output, and always have a micro-batch to work on.",
            document=petra,
            reconstruct_seconds=longer,
        ),
    )


METHODS = (("gpipe", ["method.schedule=fill-drain"]), ("petra", ["method.schedule=1f1b"]))


def picture() -> str:
    """Return the picture as SVG."""
    both = panels()
    most = max(panel.kept(stage)[0] for panel in both for stage in (1, 2))
    parts: list[Markup] = [
        tag("title", "Two stages over time: pipelined backpropagation keeps activations, PETRA reconstructs them"),
        tag("style", Markup(STYLE.replace("TRAVEL", str(WIDTH - LEFT - RIGHT)))),
        tag("defs", _arrow_head()),
    ]
    top = 4.0
    for panel in both:
        parts += _panel(panel, top, most)
        top += TITLE + 2 * (ROW + STRIP) + GAP + SPACE
    parts += _legend(top + 6)
    parts.append(tag("line", class_="now", x1=LEFT, x2=LEFT, y1=TITLE, y2=top - SPACE))
    root = tag("svg", *parts, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img")
    return f"{root}\n"


def _arrow_head() -> Markup:
    path = tag("path", d="M0 0 L6 3 L0 6 z", class_="head")
    return tag("marker", path, id="head", markerWidth=6, markerHeight=6, refX=5, refY=3, orient="auto")


def _panel(panel: Panel, top: float, most: float) -> Iterator[Markup]:
    busy = min(panel.document["timing"]["utilisation"])
    yield tag("text", panel.title, x=8, y=top + 16, class_="title")
    yield tag("text", panel.text, x=8, y=top + 35, class_="soft")
    yield tag("text", f"devices busy {percent(busy)}", x=WIDTH - 8, y=top + 16, class_="title end")
    rows = {1: top + TITLE + STRIP, 2: top + TITLE + STRIP + ROW + GAP}
    strips = {1: (rows[1] - 2, -1), 2: (rows[2] + ROW + 2, 1)}
    for stage, row in rows.items():
        yield tag("text", f"stage {stage}", x=LEFT - 12, y=row + 22, class_="end")
        yield tag("rect", x=LEFT, y=row, width=WIDTH - LEFT - RIGHT, height=ROW, class_="lane", rx=3)
        yield from _kept(panel, stage, *strips[stage], most)
    for event in panel.events:
        yield from _operation(event, rows[event["stage"]], panel.reconstruct_seconds[event["stage"] - 1])
    yield from _messages(panel, rows)


def _kept(panel: Panel, stage: int, base: float, side: int, most: float) -> Iterator[Markup]:
    """Draw the bytes that a stage keeps, away from its row."""
    peak, steps = panel.kept(stage)
    points = [f"{_x(0)},{base}"]
    for (_, before), (moment, now) in zip(steps, [*steps[1:], (SECONDS, 0.0)], strict=True):
        points += [f"{_x(moment)},{base + side * (STRIP - 6) * value / most:.1f}" for value in (before, now)]
    yield tag("polygon", points=" ".join(points), class_="kept")
    yield tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=base, y2=base, class_="base")
    yield tag(
        "text",
        f"keeps {memory(peak) if peak else 'nothing'}",
        x=WIDTH - 8,
        y=base + (side < 0) * -8 + (side > 0) * 17,
        class_="end",
    )


def _operation(event: dict[str, Any], row: float, reconstruct: float) -> Iterator[Markup]:
    start, end, name = event["start"], min(event["end"], SECONDS), str(event["micro_batch"] + 1)
    if event["verb"] == "forward":
        yield from _box("forward", f"F{name}", start, end, row)
        return
    middle = min(start + reconstruct, end)
    if reconstruct:
        yield from _box("reconstruct", f"R{name}", start, middle, row)
    yield from _box("backward", f"B{name}", middle, end, row)


def _box(kind: str, name: str, start: float, end: float, row: float) -> Iterator[Markup]:
    left, right = _x(start), _x(end)
    yield tag("rect", x=left + 0.5, y=row + 3, width=max(0.0, right - left - 1), height=ROW - 6, rx=2, class_=kind)
    if right - left > 9 * len(name):
        yield tag("text", name, x=(left + right) / 2, y=row + 21, class_="in")


def _messages(panel: Panel, rows: dict[int, float]) -> Iterator[Markup]:
    """Draw activations that go down and gradients that go up."""
    upper, lower = rows[1] + ROW, rows[2]
    for verb, sender in (("forward", 1), ("backward", 2)):
        read = {
            event["micro_batch"]: event["start"]
            for event in panel.events
            if (event["verb"], event["stage"]) == (verb, 3 - sender)
        }
        sent = (event for event in panel.events if (event["verb"], event["stage"]) == (verb, sender))
        for event in sent:
            if event["micro_batch"] in read:
                ends = (upper, lower) if sender == 1 else (lower, upper)
                yield _line(_x(event["end"]), ends[0], _x(read[event["micro_batch"]]), ends[1])


def _line(x1: float, y1: float, x2: float, y2: float) -> Markup:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_="message")


def _legend(y: float) -> Iterator[Markup]:
    entries: Sequence[tuple[str, str]] = (
        ("forward", "forward of a micro-batch"),
        ("reconstruct", "reconstruction of its input"),
        ("backward", "backward"),
        ("kept", "activations kept"),
    )
    x = 8.0
    for kind, text in entries:
        yield tag("rect", x=x, y=y, width=14, height=14, rx=2, class_=kind)
        yield tag("text", text, x=x + 20, y=y + 12, class_="soft")
        x += 40 + 6.9 * len(text)
    yield tag("text", "time →", x=WIDTH - 8, y=y + 12, class_="soft end")


def _x(seconds: float) -> float:
    return round(LEFT + (WIDTH - LEFT - RIGHT) * min(seconds, SECONDS) / SECONDS, 1)


if __name__ == "__main__":
    main()
