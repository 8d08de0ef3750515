"""The differences of two plans: settings, totals, times, the stages that both have and those that one has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

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
_SETTINGS: Sequence[tuple[str, Callable[[Document], str]]] = (
    ("method", lambda plan: str(plan["method"])),
    ("schedule", lambda plan: schedule_label(plan["schedule"])),
    ("accumulation", lambda plan: str(plan["accumulation"])),
    ("micro-batch", lambda plan: str(plan["micro_batch"])),
    ("nodes", lambda plan: str(len(plan["nodes"]))),
    ("stages", lambda plan: str(len(plan["stages"]))),
    ("devices", lambda plan: str(len(plan["devices"]))),
    ("parameters", lambda plan: f"{plan['totals']['parameters']:,}"),
)
_TIMES: Sequence[tuple[str, str, Callable[[float], str]]] = (
    ("samples_per_second", "throughput", rate),
    ("speedup_over_reversible_backprop", "speed-up over stages in turn", factor),
    ("tick_seconds", "tick", seconds),
    ("bubble_fraction", "bubble", percent),
    ("fill_seconds", "to fill the pipeline", seconds),
    ("drain_seconds", "to drain it", seconds),
)


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
    return [*_settings(document, other), *_totals(document, other), *_timings(document, other)]


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


def _settings(document: Document, other: Document) -> Iterator[Change]:
    for name, read in _SETTINGS:
        this, that = read(document), read(other)
        if this != that:
            yield Change(name=name, this=this, other=that)


def _totals(document: Document, other: Document) -> Iterator[Change]:
    this, that = (plan["totals"]["bytes"] for plan in (document, other))
    these, those = bytes_by_part(this), bytes_by_part(that)
    for part in MEMORY_PARTS:
        yield from _changed(part.name, these[part.key], those[part.key], memory)
    yield from _changed("memory, all stages", this["total"], that["total"], memory)
    this, that = (max(device["bytes"]["total"] for device in plan["devices"]) for plan in (document, other))
    yield from _changed("memory, fullest device", this, that, memory)


def _timings(document: Document, other: Document) -> Iterator[Change]:
    for key, name, write in _TIMES:
        yield from _changed(name, document["timing"][key], other["timing"][key], write)


def _changed(name: str, this: float, other: float, write: Callable[[float], str]) -> Iterator[Change]:
    """Yield a change that is more than rounding; shares change by points, all else by percent."""
    if abs(this - other) <= 1e-9 * max(abs(this), abs(other)):
        return
    change = ""
    if write is percent:
        change = f"{100 * (other - this):+.1f} points"
    elif this:
        change = f"{100 * (other / this - 1):+.1f} %"
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
            yield from (evolve(change, name=f"{label}: {change.name}") for change in _stage(stage, same))


def _stage(this: Document, other: Document) -> Iterator[Change]:
    for key in ("device", "depth", "kind"):
        if this[key] != other[key]:
            yield Change(name=key, this=one_line(str(this[key])), other=one_line(str(other[key])))
    yield from _changed("staleness", this["staleness"], other["staleness"], number)
    yield from _changed("memory", this["bytes"]["total"], other["bytes"]["total"], memory)
    for verb in ("forward", "backward"):
        yield from _changed(verb, this["seconds"][verb], other["seconds"][verb], seconds)
