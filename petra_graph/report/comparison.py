"""Plans of one network compared: what `plan --compare` and variations of a spec show, on a terminal and on a page.

A value that does not apply, or that belongs to a plan that does not exist, is null in the document and a dash here; the row's note says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve
from rich.console import RenderableType
from rich.text import Text

from petra_graph import units
from petra_graph.program.plan_document import Document
from petra_graph.report.plan_tables import schedule_label
from petra_graph.report.plan_text import Answers, assumption_lines, plan_text
from petra_graph.report.tables import Column, heading, listed_lines, name_column, render, tables, value_column, worded
from petra_graph.units import factor, memory, noun, number, one_line, percent, plural

_NAMED = 3
"""Rows that an answer names."""


def text_of(
    document: Document, *, width: int, colour: bool = False, stages: bool = False, verbose: bool = False
) -> str:
    """Write a plan, or plans side by side, for a terminal; the options are those of `plan_text`."""
    if "stages" in document:
        return plan_text(document, width=width, colour=colour, stages=stages, verbose=verbose)
    return render(_parts(document, width, verbose), width=width, colour=colour)


def _parts(document: Document, width: int, verbose: bool) -> Iterator[RenderableType]:
    yield Text(comparison_title(document), "bold")
    yield worded(answers(document))
    yield Text()
    yield from tables(comparison_columns(document, brief=not verbose), width)
    if notes := comparison_notes(document):
        yield heading("notes")
        yield from listed_lines(notes)
    yield from assumption_lines(document["assumptions"], verbose=verbose)


def comparison_title(document: Document) -> str:
    what = "methods" if _of_methods(document) else "plans"
    return f"{one_line(document['name'])}: {what} compared"


def _of_methods(document: Document) -> bool:
    return "recommended" in document


def row_names(document: Document) -> list[str]:
    """Name the rows: of methods, and where devices are used otherwise than in the first row, how."""
    rows = document["rows"]
    return [_method_name(row, rows[0]) for row in rows] if _of_methods(document) else [row["name"] for row in rows]


def _method_name(row: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    keep = "" if row["keep"] is None else "keep auto" if row["keep"] == "auto" else "keep as listed"
    schedule = "" if row["schedule"] == "sequential" else schedule_label(row["schedule"])
    used, uses = row["devices"], ""
    if row["replicas"] != first["replicas"] and row["replicas"] > 1:
        uses = f"{row['replicas']} replicas" + (f" of {used} devices" if used > 1 else "")
    elif used != first["devices"]:
        uses = f"on {used} {noun(used, 'device')}"
    elif 'partition.stages = "auto"' in row["set"]:
        uses = "stages auto"
    return ", ".join(filter(None, (row["method"], schedule, keep, uses)))


def comparison_columns(document: Document, *, brief: bool = False) -> list[Column]:
    """Return the figures of each plan; the best of those that fit is marked. Memory is also given as a share of `pipedream`'s."""
    rows, methods = document["rows"], _of_methods(document)
    values = {key: [row.get(key) for row in rows] for key in dict.fromkeys(key for row in rows for key in row)}
    fits = values["fits"]
    rates = value_column("samples\na second", values["samples_per_second"], units.PLAIN.text)
    columns = [
        name_column("method, schedule" if methods else "plan", row_names(document)),
        _mark_best(value_column("fullest\ndevice", values["memory_peak"], memory), values["memory_peak"], fits),
        *([value_column("fits", fits, lambda fit: "yes" if fit else "no")] if False in fits else []),
        _mark_best(rates, [value and -value for value in values["samples_per_second"]], fits),
        value_column("speed-up", values["speedup"], factor),
        value_column("stale\nupdates", values["staleness"], number),
    ]
    if not brief:
        columns.append(value_column("memory\ntotal", values["memory_total"], memory))
    if methods and not brief:
        columns += [
            value_column("un-\nbeaten", ["yes" if row["unbeaten"] else "" for row in rows]),
            value_column("memory, of\npipedream's", values["saving"], _rest),
            value_column("paper's\ncount", values["paper_total"], units.DECIMAL.text),
            value_column("of\npipedream's", values["paper_saving"], _rest),
            value_column("sent", values["channel_bytes"], memory),
            value_column("work", values["flops"], units.flops),
        ]
    return columns


def _mark_best(column: Column, values: Sequence[float | None], fits: Sequence[bool | None]) -> Column:
    """Return a column of numbers whose least one that fits is marked, unless all look the same."""
    cells = dict(zip(values, column.cells, strict=True))
    usable = [value for value, fit in zip(values, fits, strict=True) if value is not None and fit is not False]
    best = cells[min(usable)] if len({cells[value] for value in usable}) > 1 else None
    styles = [
        "bold green" if cell == best and fit is not False else "" for cell, fit in zip(column.cells, fits, strict=True)
    ]
    return evolve(column, styles=styles)


def _rest(saving: float) -> str:
    return percent(1 - saving)


def answers(document: Document) -> Answers:
    """Return which plan is the fastest, which the smallest, and of methods how many fit and which to choose."""
    rows, names = document["rows"], row_names(document)
    fits = [row["fits"] for row in rows]
    usable = [(name, row) for name, row in zip(names, rows, strict=True) if row["fits"] is not False]
    found: Answers = []
    if any(fit is not None for fit in fits):
        more = "" if all(fits) else "; the notes say why the others do not"
        found.append(("fits", f"{fits.count(True)} of {len(fits)}{more}"))
    found += _best("fastest", usable, "speedup", factor)
    found += _best("smallest", usable, "memory_peak", lambda value: f"{memory(value)} on the fullest device")
    best = document.get("recommended")
    if best is not None:
        row, fastest = rows[best], max((row for _, row in usable), key=lambda one: one["samples_per_second"] or 0.0)
        late = f"{plural(row['staleness'], 'update')} stale" if row["staleness"] else "no gradient is late"
        speed = factor(row["speedup"]) if row["speedup"] else units.rate(row["samples_per_second"])
        reasons = [names[best], speed, late, f"{memory(row['memory_peak'])} on the fullest device"]
        if row["samples_per_second"] < fastest["samples_per_second"]:
            gain = "less late" if row["staleness"] < fastest["staleness"] else "smaller"
            reasons.append(f"about as fast as the fastest, and {gain}")
        found.append(("choose", "; ".join(reasons)))
        found.append(("set", "; ".join(row["set"]) or "nothing: it is what the spec says"))
    return found


def _best(
    question: str, rows: Iterable[tuple[str, Mapping[str, Any]]], key: str, write: Callable[[float], str]
) -> Answers:
    """Say which rows have the best of a number; those whose numbers are written alike are no better than each other."""
    known = {name: row[key] for name, row in rows if row[key] is not None}
    if not known:
        return []
    best = write((max if key == "speedup" else min)(known.values()))
    first = [name for name, value in known.items() if write(value) == best]
    others = [f"{len(first) - _NAMED} more"] if len(first) > _NAMED else []
    alike = len(first) == len(known) > 1
    return [(question, "; ".join([best, *(["all of them"] if alike else [*first[:_NAMED], *others])]))]


def comparison_notes(document: Document) -> list[str]:
    """Return what is to be said of single rows, of the speed-ups, and of a window that is short."""
    rows = document["rows"]
    notes = [f"{name}: {row['note']}" for name, row in zip(row_names(document), rows, strict=True) if row["note"]]
    notes.append(f"speed-ups are over {document['speedup_over']}")
    if _of_methods(document) and (window := rows[0]["accumulation"]) < (devices := rows[0]["devices"]):
        notes.append(
            f"an update averages {window} {noun(window, 'micro-batch', 'es')} in a pipeline of {devices} devices: methods that drain it wait "
            "most of the time, and replicas may have too few samples to share; with "
            f"method.accumulation = {2 * devices} they compare better, at larger updates"
        )
    return notes
