"""Plans compared: methods or device counts of one network in a table, or two plans by their differences.

In a table, a value that does not apply, or that belongs to a plan that does not exist, is null in the document and a
dash here; the row's note says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

from attrs import evolve, frozen
from markupsafe import Markup
from rich.console import RenderableType
from rich.text import Text

from petra_graph import units
from petra_graph.errors import shown
from petra_graph.program.method import METHODS
from petra_graph.program.plan_document import Document
from petra_graph.report import text_tables
from petra_graph.report.drawing.line_chart import Chart, Line
from petra_graph.report.drawing.named_rows import Bar, bars, beside
from petra_graph.report.page_templates import rendered
from petra_graph.report.plan.plan_answers import Answer
from petra_graph.report.plan.plan_contents import MEMORY_PARTS, bytes_by_part
from petra_graph.report.plan.plan_on_terminal import assumption_lines
from petra_graph.report.plan.plan_tables import timing_values
from petra_graph.report.plan.short_labels import nodes_label, schedule_label
from petra_graph.report.text_tables import Column
from petra_graph.units import bounded, factor, memory, number, one_line, percent, seconds

_BEST, _OVER = "bold green", "bold red"
_NAMED = 3
"""Methods that an answer names."""
_BAR_CELLS, _BAR_PIXELS = 12, 380
_ROWS = 40
_MANY = 20
"""From this factor on, a change is given as one."""
_NODES_WIDTH = 24
_AXIS_WIDTH = 60


@frozen(kw_only=True)
class Comparison:
    """Plans side by side, as every view shows them."""

    title: str
    answers: Sequence[Answer] = ()
    pictures: Sequence[tuple[str, Markup]] = ()
    """Each with its heading; a page has them."""
    tables: Sequence[tuple[str, Sequence[Column]]] = ()
    """Each with its heading, which may be empty."""
    notes: Sequence[tuple[str, Sequence[str]]] = ()
    """Lines, each list with its heading."""
    assumptions: Sequence[str] = ()
    same: str = ""
    """What is said in place of tables where nothing differs."""
    charts: Sequence[Chart] = ()
    lists_changes: bool = False
    """Whether a row is a change, and one of many; else each row is a plan."""


def comparison_of(document: Document) -> Comparison:
    """Return what `plan --compare`, `plan --scale` or `plan --vary` found as a comparison."""
    if "varied" in document:
        return _varied(document)
    return _methods(document) if "micro_batch" in document else _device_counts(document)


def _methods(comparison: Document) -> Comparison:
    """Return the costs of each method on one network and the same devices; the best that fits is marked in a column.

    Memory is a share of that of `pipedream` under `lockstep`, the paper's first row.
    """
    rows = comparison["rows"]
    values = {key: [row[key] for row in rows] for key in rows[0]}
    unit = units.BINARY.column([value or 0 for value in values["memory_total"]])
    names = [f"{row['method']}, {schedule_label(row['schedule'])}{_kept(row.get('keep'))}" for row in rows]
    fits = values.get("fits") or [None] * len(rows)
    time = text_tables.number_column("a micro-\nbatch", units.SECONDS, values["seconds_per_micro_batch"], "work")
    memories = [
        text_tables.number_column(f"{head}", units.BINARY, values[key], "memory", unit)
        for head, key in (("memory\ntotal", "memory_total"), ("peak\ndevice", "memory_peak"))
    ]
    columns = [
        Column(head="method, schedule", cells=names, left=True),
        _marked(memories[0], values["memory_total"], fits),
        _marked(memories[1], values["memory_peak"], fits),
        *([_fits_column(fits)] if False in fits else []),
        text_tables.text_column("of\npipe-\ndream's", values["saving"], "memory", _remaining),
        text_tables.number_column("paper's\ncount", units.DECIMAL, values["paper_total"], "paper"),
        text_tables.text_column("of\npipe-\ndream's", values["paper_saving"], "paper", _remaining),
        text_tables.text_column("stale\nupdates", values["staleness"], "staleness", number),
        text_tables.number_column("sent", units.BINARY, values["channel_bytes"], "work"),
        text_tables.number_column("work", units.FLOPS, values["flops"], "work"),
        _marked(time, values["seconds_per_micro_batch"], fits),
        text_tables.text_column("speed-up", values["speedup"], "work", factor),
    ]
    title = f"{one_line(comparison['name'])}: methods compared, micro-batch {comparison['micro_batch']}"
    over = comparison.get("speedup_over", "")
    usable = [(name, row) for name, row, fit in zip(names, rows, fits, strict=True) if fit is not False]
    answers = [
        *_fit(fits),
        *_best("fastest", usable, "speedup", lambda value: f"{factor(value)} {over}".rstrip()),
        *_best("smallest", usable, "memory_peak", lambda value: f"{memory(value)} on the fullest device"),
    ]
    pictures = [
        *_bars("Memory of the fullest device", names, values["memory_peak"], fits, units.BINARY),
        *_bars(f"Speed, times {over}", names, values["speedup"], fits, units.PLAIN),
    ]
    return evolve(_of_rows(title, columns, comparison), answers=answers, pictures=pictures)


def _fit(fits: Sequence[bool | None]) -> Iterator[Answer]:
    """Say how many methods fit; nothing where the memory of devices is not known."""
    if any(fit is not None for fit in fits):
        many = fits.count(True)
        more = () if many == len(fits) else ("the notes say why the others do not",)
        yield Answer("fits", f"{many} of {len(fits)} methods", more)


def _best(
    question: str, rows: Iterable[tuple[str, Document]], key: str, write: Callable[[float], str]
) -> Iterator[Answer]:
    """Say which rows have the best of a number; those whose numbers are written alike are no better than each other."""
    known = {name: row[key] for name, row in rows if row[key] is not None}
    if known:
        best = write((max if key == "speedup" else min)(known.values()))
        first = [name for name, value in known.items() if write(value) == best]
        others = [f"{len(first) - _NAMED} more"] if len(first) > _NAMED else []
        alike = len(first) == len(known) > 1
        yield Answer(question, best, ("all of them",) if alike else (*first[:_NAMED], *others))


def _bars(
    title: str,
    names: Sequence[str],
    values: Sequence[float | None],
    fits: Sequence[bool | None],
    quantity: units.Units,
) -> Iterator[tuple[str, Markup]]:
    """Draw a bar for each method that has a value; those that do not fit have another colour."""
    rows = [
        Bar(name=name, parts=[("", value, "var(--bad)" if fit is False else "var(--accent)")], total=value)
        for name, value, fit in zip(names, values, fits, strict=True)
        if value is not None
    ]
    if rows:
        yield title, beside(bars(rows, quantity, title, _BAR_PIXELS))


def _remaining(saving: float) -> str:
    return percent(1 - saving)


def _device_counts(scaling: Document) -> Comparison:
    """Return the throughput and the costs of a network on more and more devices."""
    rows = scaling["rows"]
    values = {key: [row[key] for row in rows] for key in rows[0]}
    shares = [text_tables.bar(share or 0.0, _BAR_CELLS) for share in values["efficiency"]]
    columns = [
        text_tables.text_column("devices", values["devices"]),
        text_tables.text_column("stages", values["stages"], "speed"),
        text_tables.text_column("replicas", values["replicas"], "speed"),
        text_tables.number_column("throughput\nsamples/s", units.PLAIN, values["samples_per_second"], "speed"),
        text_tables.text_column("speed-up", values["speedup"], "speed", factor),
        text_tables.text_column("efficiency", values["efficiency"], "speed", percent),
        Column(head="", cells=shares, group="speed", left=True, styles=["blue"] * len(rows)),
        text_tables.number_column("peak\ndevice", units.BINARY, values["memory_peak"], "cost"),
        text_tables.number_column("to fill", units.SECONDS, values["fill_seconds"], "cost"),
        text_tables.text_column("stale\nupdates", values["staleness"], "cost", number),
        text_tables.number_column("busiest\nlink", units.BINARY, values["bytes_per_link"], "cost"),
    ]
    return _of_rows(f"{one_line(scaling['name'])}: throughput by number of devices", columns, scaling)


def _marked(column: Column, values: Sequence[float | None], fits: Sequence[bool | None]) -> Column:
    """Return a column of numbers whose least one that fits is marked, unless all look the same."""
    cells = dict(zip(values, column.cells, strict=True))
    usable = [value for value, fit in zip(values, fits, strict=True) if value is not None and fit is not False]
    best = cells[min(usable)] if len({cells[value] for value in usable}) > 1 else None
    styles = [_BEST if cell == best and fit is not False else "" for cell, fit in zip(column.cells, fits, strict=True)]
    return evolve(column, styles=styles)


def _fits_column(fits: Sequence[bool | None]) -> Column:
    words = {True: "yes", False: "no", None: units.NOTHING}
    return Column(
        head="fits",
        cells=[words[fit] for fit in fits],
        group="memory",
        styles=[_OVER if fit is False else "" for fit in fits],
    )


def _varied(document: Document) -> Comparison:
    """Return the plans of all combinations of some values; a combination that is refused says so where a plan has its throughput."""
    rows = document["rows"]
    values = {key: [row[key] for row in rows] for key in rows[0]}
    rates = text_tables.number_column("throughput\nsamples/s", units.PLAIN, values["samples_per_second"], "speed")
    cells = ["refused" if row["refused"] else cell for row, cell in zip(rows, rates.cells, strict=True)]
    columns = [
        *(
            text_tables.text_column(key.replace(".", ".\n", 1), [one_line(_text(row["values"][key])) for row in rows])
            for key in document["varied"]
        ),
        evolve(rates, cells=cells),
        text_tables.text_column("speed-up", values["speedup"], "speed", factor),
        text_tables.number_column("peak\ndevice", units.BINARY, values["memory_peak"], "memory"),
        text_tables.number_column("memory\ntotal", units.BINARY, values["memory_total"], "memory"),
        *([_fits_column(values["fits"])] if False in values["fits"] else []),
        text_tables.text_column("stages", values["stages"], "cost"),
        text_tables.text_column("stale\nupdates", values["staleness"], "cost", number),
    ]
    title = f"{one_line(document['name'])}: plans of {', '.join(document['varied'])}"
    found = evolve(_of_rows(title, columns, document, values["name"]), charts=varied_charts(document))
    if "methods" not in document:
        return found
    methods = _methods(document["methods"])
    notes = [("notes on methods", lines) for _, lines in methods.notes]
    return evolve(found, tables=[*found.tables, ("methods", methods.tables[0][1])], notes=[*found.notes, *notes])


def varied_charts(document: Document) -> list[Chart]:
    """Return the throughput over the values of the first key, a line for each combination of the others; none where all are refused."""
    first, *others = document["varied"]
    planned = [row for row in document["rows"] if not row["refused"]]
    places, name = _places(first, [row["values"][first] for row in document["rows"]])
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in planned:
        of_others = ", ".join(_text(row["values"][key]) for key in others)
        lines.setdefault(of_others, []).append((places[_text(row["values"][first])], row["samples_per_second"]))
    drawn = [
        Line(name=one or "this spec" * ("methods" in document), points=sorted(points), style=style)
        for style, (one, points) in enumerate(lines.items())
    ]
    if drawn and "methods" in document and name == f"{first}, GiB":
        drawn += _points(document["methods"]["rows"], len(drawn))
    missing = len(document["rows"]) - len(planned)
    note = "samples a second" + (f"; lines: {', '.join(others)}" if others else "")
    note += f"; {units.plural(missing, 'refusal')} not drawn" if missing else ""
    return [Chart(title="throughput", lines=drawn, x_name=name, from_zero=True, note=note)] if drawn else []


def _kept(keep: Any) -> str:
    return "" if keep is None else ", keep auto" if keep == "auto" else ", keep as listed"


def _points(rows: Iterable[Document], style: int) -> Iterator[Line]:
    """Yield each method under its first schedule as a point: its memory, in GiB, and its throughput."""
    for row in rows:
        own = row["schedule"] == METHODS[row["method"]].schedules[0] and not row["keep"]
        if own and row["memory_peak"] is not None and row["fits"] is not False:
            yield Line(
                name=row["method"], points=[(row["memory_peak"] / 2**30, row["samples_per_second"])], style=style
            )
            style += 1


def _places(key: str, values: Sequence[Any]) -> tuple[dict[str, float], str]:
    """Return where the values of a key, as texts, are on an axis, and the axis's name: as numbers, as GiB, or one after another."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return {_text(value): float(value) for value in values}, key
    texts = list(dict.fromkeys(map(_text, values)))
    with suppress(ValueError):
        return {text: units.byte_count(text) / 2**30 for text in texts}, f"{key}, GiB"
    named = ", ".join(f"{place} {text}" for place, text in enumerate(texts, start=1))
    return {text: float(place) for place, text in enumerate(texts, start=1)}, bounded(f"{key}: {named}", _AXIS_WIDTH)


def _text(value: Any) -> str:
    """Return a value as a specification has it, without the quotes of a text."""
    return value if isinstance(value, str) else shown(value)


def _of_rows(
    title: str, columns: Sequence[Column], document: Document, names: Sequence[str] | None = None
) -> Comparison:
    named = zip(names or columns[0].cells, document["rows"], strict=True)
    noted = [f"{name}: {row['note']}" for name, row in named if row.get("note")]
    if over := document.get("speedup_over"):
        noted.append(f"speed-ups are over {over}")
    return Comparison(
        title=title,
        tables=[("", columns)],
        notes=[("notes", noted)] if noted else (),
        assumptions=document.get("assumptions", ()),
    )


def comparison_text(comparison: Comparison, *, width: int, colour: bool = False, verbose: bool = False) -> str:
    """Write a comparison for a terminal.

    Args:
        width: of the terminal, in columns.
        colour: write ANSI escapes.
        verbose: write the assumptions too.
    """
    parts = _changes_text(comparison, width) if comparison.lists_changes else _rows_text(comparison, width)
    parts = chain(parts, assumption_lines(comparison.assumptions, verbose=verbose))
    return text_tables.render(parts, width=width, colour=colour)


def comparison_page(comparison: Comparison) -> str:
    """Write a comparison as a page."""
    return rendered("plan/comparison_page.html", comparison=comparison)


def _rows_text(comparison: Comparison, width: int) -> Iterator[RenderableType]:
    yield Text(comparison.title, "bold")
    if comparison.answers:
        yield text_tables.worded((answer.question, str(answer)) for answer in comparison.answers)
    yield Text()
    for _, columns in comparison.tables:
        yield from text_tables.packed(columns, width)
    for title, lines in comparison.notes:
        yield text_tables.heading(title)
        yield from map(text_tables.indented, lines)


def _changes_text(comparison: Comparison, width: int) -> Iterator[RenderableType]:
    yield Text(comparison.title, "bold")
    if comparison.same:
        yield Text(comparison.same)
    for title, columns in comparison.tables:
        yield text_tables.heading(title)
        yield text_tables.table(columns, _ROWS, wraps=True)
        yield from _more(len(columns[0].cells) - _ROWS)
    for title, lines in comparison.notes:
        yield text_tables.heading(title)
        yield from (text_tables.indented(bounded(line, width - 2)) for line in lines[:_ROWS])
        yield from _more(len(lines) - _ROWS)


def _more(many: int) -> Iterator[RenderableType]:
    if many > 0:
        yield Text(units.left_out(many), "dim")


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


def differences(document: Document, other: Document) -> Comparison:
    """Return what changes from another plan, such as an earlier one, to this one."""
    whole, stages, regrouped = changes(document, other), list(_stages(document, other)), _regrouped(document, other)
    agree = not (whole or stages or regrouped)
    return Comparison(
        title=f"changes from {one_line(other['name'])} to {one_line(document['name'])}",
        tables=[
            (title, _change_columns(rows))
            for title, rows in (("plan", whole), ("stages of the same nodes", stages))
            if rows
        ],
        notes=[("stages of other nodes", regrouped)] if regrouped else (),
        same="the plans agree in settings, memory, times, stages and devices" if agree else "",
        lists_changes=True,
    )


def _change_columns(rows: Sequence[Change]) -> list[Column]:
    names = Column(head="", cells=[row.name for row in rows], left=True)
    values = (
        text_tables.text_column(head, (getattr(row, head) for row in rows)) for head in ("other", "this", "change")
    )
    return [names, *values]


def changes(document: Document, other: Document) -> list[Change]:
    """Return the settings, totals and times that change from another plan to this one."""
    return list(_changed(_values(document), _values(other)))


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
            change = (
                ""
                if not other
                else f"{this / other:,.0f} x"
                if this / other >= _MANY
                else f"{100 * (this / other - 1):+.1f} %"
            )
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
