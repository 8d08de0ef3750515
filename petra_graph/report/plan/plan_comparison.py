"""Plans compared: methods or device counts of one network in a table, or two plans by their differences.

In a table, a value that does not apply, or that belongs to a plan that does not exist, is null in the document and a
dash here; the row's note says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from attrs import evolve, frozen
from rich.console import RenderableType
from rich.text import Text

from petra_graph import units
from petra_graph.program.plan_document import Document
from petra_graph.report import text_tables
from petra_graph.report.plan.plan_contents import MEMORY_PARTS, bytes_by_part
from petra_graph.report.plan.plan_tables import timing_values
from petra_graph.report.plan.short_labels import nodes_label, schedule_label
from petra_graph.report.text_tables import Column
from petra_graph.units import bounded, factor, memory, number, one_line, percent, seconds

_BEST = "bold green"
_BAR_CELLS = 12
_ROWS = 40
_NODES_WIDTH = 24


def compare_text(comparison: Document, *, width: int, colour: bool = False) -> str:
    """Write the costs of each method on one network and the same devices; the best of a column is bold."""
    rows = comparison["rows"]
    values = {key: [row[key] for row in rows] for key in rows[0]}
    unit = units.BINARY.column([value or 0 for value in values["memory_total"]])
    names = [
        f"{row['method']}, {schedule_label(row['schedule'])}{', split' if row.get('split_backward') else ''}"
        for row in rows
    ]
    columns = [
        Column(head="method, schedule", cells=names, left=True),
        _compared_column("memory\ntotal", units.BINARY, values["memory_total"], "memory", unit),
        _compared_column("peak\ndevice", units.BINARY, values["memory_peak"], "memory", unit),
        text_tables.text_column("memory\nsaved", values["saving"], "memory", percent),
        text_tables.number_column("paper's\ncount", units.DECIMAL, values["paper_total"], "paper"),
        text_tables.text_column("saved\nthere", values["paper_saving"], "paper", percent),
        text_tables.text_column("stale\nupdates", values["staleness"], "staleness", number),
        text_tables.number_column("sent", units.BINARY, values["channel_bytes"], "work"),
        text_tables.number_column("work", units.FLOPS, values["flops"], "work"),
        _compared_column("a micro-\nbatch", units.SECONDS, values["seconds_per_micro_batch"], "work"),
        text_tables.text_column("speed-up", values["speedup"], "work", factor),
    ]
    title = f"{one_line(comparison['name'])}: methods compared, micro-batch {comparison['micro_batch']}"
    said = comparison.get("assumptions", ())
    return text_tables.render(_parts(title, columns, rows, said, width), width=width, colour=colour)


def scale_text(scaling: Document, *, width: int, colour: bool = False) -> str:
    """Write the throughput and the costs of a network on more and more devices."""
    rows = scaling["rows"]
    values = {key: [row[key] for row in rows] for key in rows[0]}
    bars = [text_tables.bar(share or 0.0, _BAR_CELLS) for share in values["efficiency"]]
    columns = [
        text_tables.text_column("devices", values["devices"]),
        text_tables.text_column("stages", values["stages"], "speed"),
        text_tables.text_column("replicas", values["replicas"], "speed"),
        text_tables.number_column("throughput\nsamples/s", units.PLAIN, values["samples_per_second"], "speed"),
        text_tables.text_column("speed-up", values["speedup"], "speed", factor),
        text_tables.text_column("efficiency", values["efficiency"], "speed", percent),
        Column(head="", cells=bars, group="speed", left=True, styles=["blue"] * len(rows)),
        text_tables.number_column("peak\ndevice", units.BINARY, values["memory_peak"], "cost"),
        text_tables.number_column("to fill", units.SECONDS, values["fill_seconds"], "cost"),
        text_tables.text_column("stale\nupdates", values["staleness"], "cost", number),
        text_tables.number_column("busiest\nlink", units.BINARY, values["bytes_per_link"], "cost"),
    ]
    title = f"{one_line(scaling['name'])}: throughput by number of devices"
    said = scaling.get("assumptions", ())
    return text_tables.render(_parts(title, columns, rows, said, width), width=width, colour=colour)


def _compared_column(
    head: str, quantity: units.Units, values: Sequence[float | None], group: str, unit: units.ColumnUnit | None = None
) -> Column:
    """Return a column of numbers of which the least is marked, where they differ."""
    known = {value for value in values if value is not None}
    best = min(known) if len(known) > 1 else None
    styles = [_BEST if value is not None and value == best else "" for value in values]
    return evolve(text_tables.number_column(head, quantity, values, group, unit), styles=styles)


def _parts(
    title: str, columns: Sequence[Column], rows: Sequence[Document], assumptions: Sequence[str], width: int
) -> Iterator[RenderableType]:
    yield Text(f"{title}\n", "bold")
    yield from text_tables.packed(columns, range(len(rows)), width)
    noted = [(name, row["note"]) for name, row in zip(columns[0].cells, rows, strict=True) if row.get("note")]
    if noted:
        yield text_tables.heading("notes")
        yield from (text_tables.indented(f"{name}: {note}") for name, note in noted)
    if assumptions:
        yield text_tables.heading("assumptions")
        yield from (text_tables.indented(text, "-") for text in assumptions)


Value = tuple[str, float | str, Callable[[float], str]]
"""A name, a number and how it is written; or a name and a setting, which is compared as text."""


@frozen(kw_only=True)
class Change:
    """One value that differs."""

    name: str
    other: str
    this: str
    change: str = ""
    """The change from the other plan to this one."""


def diff_text(document: Document, other: Document, *, width: int, colour: bool = False) -> str:
    """Write what changes from another plan to this one.

    Args:
        document: this plan.
        other: the plan to compare with, such as an earlier one.
        width: of the terminal, in columns.
        colour: write ANSI escapes.
    """
    return text_tables.render(_sections(document, other, width), width=width, colour=colour)


def changes(document: Document, other: Document) -> list[Change]:
    """Return the settings, totals and times that change from another plan to this one."""
    return list(_changed(_values(document), _values(other)))


def _sections(document: Document, other: Document, width: int) -> Iterator[RenderableType]:
    yield Text(f"changes from {one_line(other['name'])} to {one_line(document['name'])}", "bold")
    whole, stages, regrouped = changes(document, other), list(_stages(document, other)), _regrouped(document, other)
    if not whole and not regrouped and not stages:
        yield Text("the plans agree in settings, memory, times, stages and devices")
        return
    for title, rows in (("plan", whole), ("stages of the same nodes", stages)):
        if rows:
            yield text_tables.heading(title)
            shown = rows[:_ROWS]
            names = Column(head="", cells=[row.name for row in shown], left=True)
            values = (
                text_tables.text_column(head, (getattr(row, head) for row in shown))
                for head in ("other", "this", "change")
            )
            yield text_tables.table([names, *values], wraps=True)
            yield from _more(len(rows) - _ROWS)
    if regrouped:
        yield text_tables.heading("stages of other nodes")
        yield from (text_tables.indented(bounded(line, width - 2)) for line in regrouped[:_ROWS])
        yield from _more(len(regrouped) - _ROWS)


def _more(many: int) -> Iterator[RenderableType]:
    if many > 0:
        yield Text(units.left_out(many), "dim")


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
    yield from timing_values(plan["timing"])


def _stage_values(stage: Document) -> Iterator[Value]:
    for key in ("device", "depth", "kind"):
        yield key, one_line(str(stage[key])), str
    yield "order", str(stage.get("word") or "whole backwards"), str
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
            change = f"{100 * (this / other - 1):+.1f} %" if other else ""
            if write is percent:
                change = f"{100 * (this - other):+.1f} points"
            yield Change(name=name, this=write(this), other=write(other), change=change)


def _regrouped(document: Document, other: Document) -> list[str]:
    """Name the stages whose nodes do not form a stage in the other plan."""
    lines = []
    for title, plan, against in (("other", other, document), ("this ", document, other)):
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
