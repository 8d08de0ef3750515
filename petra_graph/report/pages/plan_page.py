"""A plan, or plans compared, as a page: what a terminal says of it, and of a plan pictures of its memory and time."""

from __future__ import annotations

from petra_graph.compiler.plan import Comparison, Plan
from petra_graph.report.pages.page import Section, bar_chart, render_page, timeline
from petra_graph.report.plan_text import PART_NAMES, nodes_label, parts_held, plan_in_words, ranges_label
from petra_graph.units import memory

_TICKS = 4
_TIMELINE = (
    "Some ticks, once every stage works. F and B are the forward and the backward of a micro-batch, by its number."
)


def page(plan: Plan | Comparison) -> str:
    """Write a plan, or plans compared, as a page."""
    said, pictures = plan_in_words(plan), list[Section]()
    if isinstance(plan, Plan):
        pictures = [
            Section(name="memory", pictures=[memory_bars(plan)]),
            Section(name="timeline", note=_TIMELINE, pictures=timeline_of(plan)),
        ]
    sections = [
        *pictures,
        Section(name="tables", tables=said.tables, lines=said.notes),
        Section(name="assumptions", lines=said.assumptions),
    ]
    return render_page(said.title, sections, answers=said.answers, about=said.about, warnings=said.warnings)


def memory_bars(plan: Plan) -> str:
    """Draw the memory of every device, by what it is for, against the device's limit."""
    held = parts_held(device.bytes for device in plan.devices)
    bars = [
        (f"{one.name}  ({one.type}, {ranges_label(one.stages)})", parts, one.memory_bytes)
        for one, parts in zip(plan.devices, zip(*held.values(), strict=True), strict=True)
    ]
    return bar_chart("memory of devices", bars, [PART_NAMES[part] for part in held], memory)


def timeline_of(plan: Plan) -> list[str]:
    """Draw some ticks of a plan's timeline, a row for each stage."""
    backwards = sorted((one for one in plan.timeline if one.verb == "backward"), key=lambda one: -one.start)
    # From the first backward of every stage on, the pipeline is full.
    start = max({one.stage: one.start for one in backwards}.values(), default=0.0)
    end = start + _TICKS * plan.timing.tick_seconds
    blocks = [block for block in plan.timeline if block.end > start and block.start < end]
    names = [f"{one.index}  {one.device}  {nodes_label(one.nodes)}" for one in plan.stages]
    rows = [[block for block in blocks if block.stage == stage.index] for stage in plan.stages]
    return [timeline("simulated timeline", names, rows)] if blocks else []
