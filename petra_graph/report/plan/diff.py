"""The differences of two plans: settings, totals, times, the stages that both have and those that one has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from attrs import evolve, frozen
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from petra_graph.program.plan_document import Document
from petra_graph.report.plan.document import MEMORY_PARTS, bytes_by_part
from petra_graph.report.plan.labels import nodes_label, schedule_label
from petra_graph.report.plan.screen import DEFAULT_WIDTH, heading, render
from petra_graph.report.plan.tables import Column, table, text_column
from petra_graph.report.plan.units import bounded, factor, memory, number, one_line, percent, rate, seconds

_ROWS = 40
_NODES_WIDTH = 24
Value = tuple[str, float | str, Callable[[float], str]]
"""A name, a number and how it is written; or a name and a setting, which is compared as text."""


@frozen(kw_only=True)
class Change:
    """One value that differs."""

    name: str
    this: str
    other: str
    change: str = ""


def diff_text(document: Document, other: Document, *, width: int = DEFAULT_WIDTH, colour: bool = False) -> str:
    """Write the changes from a plan to another.

    Args:
        document: the plan.
        other: the plan to compare with; changes are from `document` to `other`.
        width: of the terminal, in columns.
        colour: write ANSI escapes.
    """
    return render(_sections(document, other, width), width=width, colour=colour)


def changes(document: Document, other: Document) -> list[Change]:
    """Return the settings, totals and times that differ."""
    return list(_changed(_values(document), _values(other)))


def _sections(document: Document, other: Document, width: int) -> Iterator[RenderableType]:
    yield Text(f"{one_line(document['name'])} and {one_line(other['name'])}", "bold")
    whole, stages, regrouped = changes(document, other), list(_stages(document, other)), _regrouped(document, other)
    if not whole and not regrouped and not stages:
        yield Text("the plans agree in settings, memory, times, stages and devices")
        return
    for title, rows in (("plan", whole), ("stages of the same nodes", stages)):
        if rows:
            yield heading(title)
            shown = rows[:_ROWS]
            names = Column(head="", cells=[row.name for row in shown], left=True)
            values = (text_column(head, (getattr(row, head) for row in shown)) for head in ("this", "other", "change"))
            yield table([names, *values], wraps=True)
            yield from _more(len(rows) - _ROWS)
    if regrouped:
        yield heading("stages of other nodes")
        for line in regrouped[:_ROWS]:
            yield Padding(Text(bounded(line, width - 2)), (0, 0, 0, 2))
        yield from _more(len(regrouped) - _ROWS)


def _more(many: int) -> Iterator[RenderableType]:
    if many > 0:
        yield Text(f"… {many} more", "dim")


def _values(plan: Document) -> Iterator[Value]:
    """Yield a plan's settings, totals and times."""
    yield "method", plan["method"], str
    yield "schedule", schedule_label(plan["schedule"]), str
    yield "accumulation", str(plan["accumulation"]), str
    yield "micro-batch", str(plan["micro_batch"]), str
    for key in ("nodes", "stages", "devices"):
        yield key, str(len(plan[key])), str
    yield "parameters", f"{plan['totals']['parameters']:,}", str
    parts = bytes_by_part(plan["totals"]["bytes"])
    yield from ((part.name, parts[part.key], memory) for part in MEMORY_PARTS)
    yield "memory, all stages", plan["totals"]["bytes"]["total"], memory
    yield "memory, fullest device", max(device["bytes"]["total"] for device in plan["devices"]), memory
    timing = plan["timing"]
    yield "throughput", timing["samples_per_second"], rate
    yield "speed-up over stages in turn", timing["speedup_over_reversible_backprop"], factor
    yield "tick", timing["tick_seconds"], seconds
    yield "bubble", timing["bubble_fraction"], percent
    yield "to fill the pipeline", timing["fill_seconds"], seconds
    yield "to drain it", timing["drain_seconds"], seconds


def _stage_values(stage: Document) -> Iterator[Value]:
    for key in ("device", "depth", "kind"):
        yield key, one_line(str(stage[key])), str
    yield "staleness", stage["staleness"], number
    yield "memory", stage["bytes"]["total"], memory
    for verb in ("forward", "backward"):
        yield verb, stage["seconds"][verb], seconds


def _changed(these: Iterable[Value], those: Iterable[Value]) -> Iterator[Change]:
    """Yield the changes that are more than rounding; shares change by points, all other numbers by percent."""
    for (name, this, write), (_, other, _) in zip(these, those, strict=True):
        if isinstance(this, str) or isinstance(other, str):
            if this != other:
                yield Change(name=name, this=str(this), other=str(other))
        elif abs(this - other) > 1e-9 * max(abs(this), abs(other)):
            change = f"{100 * (other / this - 1):+.1f} %" if this else ""
            if write is percent:
                change = f"{100 * (other - this):+.1f} points"
            yield Change(name=name, this=write(this), other=write(other), change=change)


def _regrouped(document: Document, other: Document) -> list[str]:
    """Name the stages whose nodes form no stage in the other plan."""
    lines = []
    for title, plan, against in (("this ", document, other), ("other", other, document)):
        known = {tuple(stage["nodes"]) for stage in against["stages"]}
        for stage in plan["stages"]:
            if tuple(stage["nodes"]) not in known:
                where = f"{one_line(stage['device'])}, {memory(stage['bytes']['total'])}"
                lines.append(f"{title}  {stage['index']} {nodes_label(stage['nodes'])} ({where})")
    return lines


def _stages(document: Document, other: Document) -> Iterator[Change]:
    by_nodes = {tuple(stage["nodes"]): stage for stage in other["stages"]}
    for stage in document["stages"]:
        same = by_nodes.get(tuple(stage["nodes"]))
        if same is not None:
            label = f"{stage['index']} {bounded(nodes_label(stage['nodes']), _NODES_WIDTH)}"
            for change in _changed(_stage_values(stage), _stage_values(same)):
                yield evolve(change, name=f"{label}: {change.name}")
