"""A plan, or plans compared, as a page: the answers and tables of the terminal, and of a plan pictures of its memory and time."""

from __future__ import annotations

from petra_graph.compiler.plan import Comparison, Plan
from petra_graph.report import plan_text
from petra_graph.report.pages.page import Picture, Section, bar_chart, render_page, timeline
from petra_graph.report.tables import pair_columns
from petra_graph.units import memory

_TICKS = 4
_TIMELINE = (
    "Some ticks, once every stage works. F and B are the forward and the backward of a micro-batch, by its number."
)


def page(plan: Plan | Comparison) -> str:
    """Write a plan, or plans compared, as a page."""
    if isinstance(plan, Comparison):
        sections = [
            Section(name="table", tables=[("", plan_text.comparison_columns(plan))]),
            Section(name="notes", lines=plan_text.comparison_notes(plan)),
            Section(name="assumptions", lines=plan.assumptions),
        ]
        return render_page(
            plan_text.comparison_title(plan), sections, answers=plan_text.comparison_answers(plan), predicted=True
        )
    tables = [("stages", plan_text.stage_columns(plan)), ("devices", plan_text.device_columns(plan))]
    tables += [(title, pair_columns("", pairs)) for title, pairs in plan_text.totals(plan)]
    sections = [
        Section(name="memory", pictures=[memory_bars(plan)]),
        Section(name="timeline", note=_TIMELINE, pictures=timeline_of(plan)),
        Section(name="tables", tables=tables, lines=plan_text.notes_on_nodes(plan)),
        Section(name="assumptions", lines=[*plan.notes, *plan.assumptions]),
    ]
    about, warnings = plan_text.title_lines(plan), plan.warnings[1:]
    return render_page(
        f"{plan.name}: plan", sections, answers=plan_text.answers(plan), about=about, warnings=warnings, predicted=True
    )


def memory_bars(plan: Plan) -> Picture:
    """Draw the memory of every device, by what it is for, against the device's limit."""
    held = plan_text.parts_held(device.bytes for device in plan.devices)
    bars = [
        (f"{one.name}  ({one.type}, {plan_text.ranges_label(one.stages)})", parts, one.memory_bytes)
        for one, parts in zip(plan.devices, zip(*held.values(), strict=True), strict=True)
    ]
    return bar_chart("memory of devices", bars, [plan_text.PART_NAMES[part] for part in held], memory)


def timeline_of(plan: Plan) -> list[Picture]:
    """Draw some ticks of a plan's timeline, a row for each stage."""
    backwards = sorted(
        (one for one in plan.timeline if one.verb == "backward"), key=lambda one: one.start, reverse=True
    )
    # From the first backward of every stage on, the pipeline is full.
    start = max({one.stage: one.start for one in backwards}.values(), default=0.0)
    end = start + _TICKS * plan.timing.tick_seconds
    blocks = [block for block in plan.timeline if block.end > start and block.start < end]
    names = [f"{one.index}  {one.device}  {plan_text.nodes_label(one.nodes)}" for one in plan.stages]
    rows = [[block for block in blocks if block.stage == stage.index] for stage in plan.stages]
    return [timeline("simulated timeline", names, rows)] if blocks else []
