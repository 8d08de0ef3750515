"""A plan, or plans compared, as a page: what a terminal says of it, and of a plan pictures of its memory and time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from petra_graph.compiler.plan import Comparison, Plan
from petra_graph.report.pages.page import LONGEST_NAME, Section, drawn, render_page
from petra_graph.report.plan_text import PART_NAMES, nodes_label, parts_held, plan_in_words, ranges_label
from petra_graph.units import bounded, memory, one_line, seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TICKS = 4
_COLOURS = {"forward": "#56b4e9", "backward": "#e69f00", "update": "#a33b00"}
_TIMELINE = (
    "Some ticks, once every stage works. F and B are the forward and the backward of a micro-batch, by its number."
)


def page(plan: Plan | Comparison) -> str:
    """Write a plan, or plans compared, as a page."""
    said, pictures = plan_in_words(plan), list[Section]()
    if isinstance(plan, Plan):
        pictures = [
            Section(name="memory", pictures=[_memory_bars(plan)]),
            Section(name="timeline", note=_TIMELINE, pictures=[_timeline(plan)] if plan.timeline else ()),
        ]
    sections = [
        *pictures,
        Section(name="tables", tables=said.tables, lines=said.notes),
        Section(name="assumptions", lines=said.assumptions),
    ]
    return render_page(said.title, sections, answers=said.answers, about=said.about, warnings=said.warnings)


def _memory_bars(plan: Plan) -> str:
    """Draw the memory of every device, by what it is for, with its total behind it, red above the device's limit."""
    held, devices = parts_held(device.bytes for device in plan.devices), plan.devices

    def draw(figure: Figure, axis: Axes) -> None:
        starts = [0] * len(devices)
        for part, values in held.items():
            axis.barh(range(len(devices)), values, 0.76, starts, label=PART_NAMES[part])
            starts = [start + value for start, value in zip(starts, values, strict=True)]
        for at, (device, total) in enumerate(zip(devices, starts, strict=True)):
            limit = device.memory_bytes
            text = memory(total) + (f" of {memory(limit)}" if limit else "")
            colour = "#b00020" if limit and total > limit else "black"
            axis.annotate(text, (total, at), (5, 0), textcoords="offset points", va="center", color=colour)
        _name_rows(axis, [f"{one.name}  ({one.type}, {ranges_label(one.stages)})" for one in devices])
        axis.set_xlim(0, 1.3 * max(starts))
        axis.xaxis.set_visible(False)  # the totals are written
        figure.legend(loc="outside lower left", ncols=4)

    return drawn("memory of devices", (9.6, 0.19 * len(devices) + 0.8), draw)


def _timeline(plan: Plan) -> str:
    """Draw some ticks of a plan's timeline, a row for each stage: F and B with the number of the micro-batch, where there is room."""
    # From the first backward of every stage on, the pipeline is full.
    first = {one.stage: one.start for one in reversed(plan.timeline) if one.verb == "backward"}
    start = max(first.values(), default=0.0)
    end = start + _TICKS * plan.timing.tick_seconds
    blocks = [block for block in plan.timeline if block.end > start and block.start < end]
    rows = {stage.index: at for at, stage in enumerate(plan.stages)}

    def draw(figure: Figure, axis: Axes) -> None:
        for verb, colour in _COLOURS.items():
            of_verb = [block for block in blocks if block.verb == verb]
            # What is seen of each: a block that begins before the picture, or ends behind it, has its label within.
            spans = [(max(block.start, start), min(block.end, end)) for block in of_verb]
            places, starts = [rows[block.stage] for block in of_verb], [begin for begin, _ in spans]
            lengths = [until - begin for begin, until in spans]
            axis.barh(places, lengths, 0.84, starts, color=colour, edgecolor="white", linewidth=0.4, label=verb)
            for block, place, begin, long in zip(of_verb, places, starts, lengths, strict=True):
                text = f"{verb[0].upper()}{block.micro_batch}"
                if verb != "update" and long / (end - start) > 0.008 * len(text):
                    axis.text(begin + long / 2, place, text, ha="center", va="center", fontsize=7)
        _name_rows(axis, [f"{one.index}  {one.device}  {nodes_label(one.nodes)}" for one in plan.stages])
        axis.set_xlim(start, end)
        axis.xaxis.set_major_formatter(lambda value, _: seconds(value) if value else "0")
        figure.legend(loc="outside lower left", ncols=3)

    return drawn("simulated timeline", (11, 0.2 * len(rows) + 0.7), draw)


def _name_rows(axis: Axes, names: Sequence[str]) -> None:
    """Name the rows, the first at the top."""
    axis.set_yticks(range(len(names)), [bounded(one_line(name), LONGEST_NAME) for name in names])
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0)
    axis.grid(visible=False, axis="y")
