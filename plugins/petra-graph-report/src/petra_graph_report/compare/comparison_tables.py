"""Plans compared: methods, device counts or values of one network in a table.

In it, a value that does not apply, or that belongs to a plan that does not exist, is null in the document and a
dash here; the row's note says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from attrs import evolve, frozen

from petra_graph import units
from petra_graph.errors import shown
from petra_graph.program.plan_document import Document
from petra_graph.report import text_tables
from petra_graph.report.plan.plan_answers import Answer
from petra_graph.report.plan.short_labels import schedule_label
from petra_graph.report.text_tables import Column
from petra_graph.units import factor, memory, noun, number, one_line, percent, plural

_BEST, _OVER = "bold green", "bold red"
_NAMED = 3
"""Methods that an answer names."""
_BAR_CELLS = 12


@frozen(kw_only=True)
class Comparison:
    """Plans side by side, as every view shows them."""

    title: str
    answers: Sequence[Answer] = ()
    tables: Sequence[tuple[str, Sequence[Column]]] = ()
    """Each with its heading, which may be empty."""
    notes: Sequence[tuple[str, Sequence[str]]] = ()
    """Lines, each list with its heading."""
    assumptions: Sequence[str] = ()


def comparison_of(document: Document) -> Comparison:
    """Return what `plan --compare`, `plan --scale` or `plan --vary` found as a comparison."""
    if "varied" in document:
        return _compare_values(document)
    return _compare_methods(document) if "micro_batch" in document else _compare_counts(document)


def _compare_methods(comparison: Document) -> Comparison:
    """Return the costs of each method on one network and the same devices; the best that fits is marked in a column.

    Memory is a share of that of `pipedream` under `lockstep`, the paper's first row.
    """
    rows = comparison["rows"]
    values = {key: [row[key] for row in rows] for key in rows[0]}
    unit = units.BINARY.column([value or 0 for value in values["memory_total"]])
    names = method_names(rows)
    fits = values.get("fits") or [None] * len(rows)
    rates = text_tables.number_column("throughput\nsamples/s", units.PLAIN, values["samples_per_second"], "speed")
    memories = [
        text_tables.number_column(head, units.BINARY, values[key], "memory", unit)
        for head, key in (("memory\ntotal", "memory_total"), ("peak\ndevice", "memory_peak"))
    ]
    columns = [
        Column(head="method, schedule", cells=names, left=True),
        _mark_best(memories[0], values["memory_total"], fits),
        _mark_best(memories[1], values["memory_peak"], fits),
        *([_fits_column(fits)] if False in fits else []),
        text_tables.text_column("of\npipe-\ndream's", values["saving"], "memory", _rest),
        text_tables.number_column("paper's\ncount", units.DECIMAL, values["paper_total"], "paper"),
        text_tables.text_column("of\npipe-\ndream's", values["paper_saving"], "paper", _rest),
        text_tables.text_column("stale\nupdates", values["staleness"], "staleness", number),
        text_tables.number_column("sent", units.BINARY, values["channel_bytes"], "work"),
        text_tables.number_column("work", units.FLOPS, values["flops"], "work"),
        _mark_best(rates, [value and -value for value in values["samples_per_second"]], fits),
        text_tables.text_column("speed-up", values["speedup"], "speed", factor),
        Column(head="un-\nbeaten", cells=["yes" if row["unbeaten"] else "" for row in rows], group="speed", left=True),
    ]
    found = _make_comparison(
        f"{one_line(comparison['name'])}: methods compared, micro-batch {comparison['micro_batch']}",
        columns,
        comparison,
    )
    if short := _short_window(rows[0]):
        found = evolve(found, notes=[*found.notes, ("the window", [short])])
    over = comparison.get("speedup_over", "")
    usable = [(name, row) for name, row, fit in zip(names, rows, fits, strict=True) if fit is not False]
    answers = [
        *_fit(fits),
        *_best("fastest", usable, "speedup", lambda value: f"{factor(value)} {over}".rstrip()),
        *_best("smallest", usable, "memory_peak", lambda value: f"{memory(value)} on the fullest device"),
        *_recommended(comparison, names),
    ]
    return evolve(found, answers=answers)


def _short_window(row: Document) -> str:
    """Say if an update averages too few micro-batches for methods that drain the pipeline; "" if it averages enough."""
    window, devices = row["accumulation"], row["devices"]
    if window >= devices:
        return ""
    return (
        f"an update averages {window} {noun(window, 'micro-batch', 'es')} in a pipeline of {devices} devices: methods that drain it wait most of the time, and "
        f"replicas may have too few samples to share; with method.accumulation = {2 * devices} they compare better, at larger updates"
    )


def _recommended(comparison: Document, names: Sequence[str]) -> Iterator[Answer]:
    """Say which row to choose, why, and what to set."""
    if (best := comparison["recommended"]) is None:
        return
    row = comparison["rows"][best]
    late = f"{plural(row['staleness'], 'update')} stale" if row["staleness"] else "no gradient is late"
    reasons = [f"{factor(row['speedup'])}", late, f"{memory(row['memory_peak'])} on the fullest device"]
    fastest = max(comparison["rows"], key=lambda one: (one["fits"] is not False and one["speedup"]) or 0.0)
    if row["speedup"] < fastest["speedup"]:
        gain = "less late" if row["staleness"] < fastest["staleness"] else "smaller"
        reasons.append(f"about as fast as the fastest, and {gain}")
    yield Answer("choose", names[best], tuple(reasons))
    yield Answer("set", "; ".join(row["set"]) or "nothing: it is what the spec says")


def _fit(fits: Sequence[bool | None]) -> Iterator[Answer]:
    """Say how many methods fit; nothing if the memory of devices is not known."""
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


def _rest(saving: float) -> str:
    return percent(1 - saving)


def _compare_counts(scaling: Document) -> Comparison:
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
    return _make_comparison(f"{one_line(scaling['name'])}: throughput by number of devices", columns, scaling)


def _mark_best(column: Column, values: Sequence[float | None], fits: Sequence[bool | None]) -> Column:
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


def _compare_values(document: Document) -> Comparison:
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
    return _make_comparison(title, columns, document, values["name"])


def method_names(rows: Iterable[Document]) -> list[str]:
    """Name rows of methods; where the devices are shared by other numbers of replicas than in the first row, these are named."""
    rows = list(rows)
    return [_method_name(row, shared=row["replicas"] != rows[0]["replicas"]) for row in rows]


def _method_name(row: Document, *, shared: bool) -> str:
    schedule = "" if shared and row["schedule"] == "sequential" else f", {schedule_label(row['schedule'])}"
    return f"{row['method']}{schedule}{_keep_text(row['keep'])}" + (f", {row['replicas']} replicas" if shared else "")


def _keep_text(keep: Any) -> str:
    return "" if keep is None else ", keep auto" if keep == "auto" else ", keep as listed"


def _text(value: Any) -> str:
    """Return a value as a specification has it, without the quotes of a text."""
    return value if isinstance(value, str) else shown(value)


def _make_comparison(
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
