"""Plans of one network side by side, as `plan --compare` and variations of a spec give them: answers, a table, notes.

A value that does not apply, or that belongs to a plan that does not exist, is None and a dash here; the row's note says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from petra_graph import units
from petra_graph.compiler.plan import Document
from petra_graph.report.plan_tables import schedule_label
from petra_graph.report.tables import Column, name_column, value_column
from petra_graph.units import factor, memory, noun, number, one_line, percent, plural

Row = Mapping[str, Any]
_NAMED = 3
"""Rows that an answer names."""


def comparison_title(document: Document) -> str:
    return f"{one_line(document['name'])}: {'methods' if _of_methods(document) else 'plans'} compared"


def _of_methods(document: Document) -> bool:
    return "recommended" in document


def row_names(document: Document) -> list[str]:
    """Name the rows: of methods, and where devices are used otherwise than in the first row, how."""
    rows = document["rows"]
    return [_method_name(row, rows[0]) for row in rows] if _of_methods(document) else [row["name"] for row in rows]


def _method_name(row: Row, first: Row) -> str:
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
    """Return the figures of each plan; the best of those that fit has a star. Memory is also given as a share of `pipedream`'s."""
    rows, methods = document["rows"], _of_methods(document)
    fit = [row["fits"] is not False for row in rows]

    def values(head: str, key: str, write: Callable[[Any], str], best: Callable[..., Any] | None = None) -> Column:
        found = [row.get(key) for row in rows]
        texts = [None if value is None else write(value) for value in found]
        usable = [value for value, fits in zip(found, fit, strict=True) if fits and value is not None]
        if best is None or len(set(map(write, usable))) == 1 or not usable:
            return value_column(head, texts)
        first = write(best(usable))
        stars = ("*" if fits and text == first else " " for text, fits in zip(texts, fit, strict=True))
        return value_column(head, [text and f"{text} {star}" for text, star in zip(texts, stars, strict=True)])

    columns = [
        name_column("method, schedule" if methods else "plan", row_names(document)),
        values("fullest\ndevice", "memory_peak", memory, min),
        *([values("fits", "fits", lambda fits: "yes" if fits else "no")] if not all(fit) else []),
        values("samples\na second", "samples_per_second", units.PLAIN.text, max),
        values("speed-up", "speedup", factor),
        values("stale\nupdates", "staleness", number),
    ]
    if not brief:
        columns.append(values("memory\ntotal", "memory_total", memory))
    if methods and not brief:
        columns += [
            values("un-\nbeaten", "unbeaten", lambda unbeaten: "yes" if unbeaten else ""),
            values("memory, of\npipedream's", "saving", _rest),
            values("paper's\ncount", "paper_total", units.DECIMAL.text),
            values("of\npipedream's", "paper_saving", _rest),
            values("sent", "channel_bytes", memory),
            values("work", "flops", units.flops),
        ]
    return columns


def _rest(saving: float) -> str:
    return percent(1 - saving)


def comparison_answers(document: Document) -> list[tuple[str, str]]:
    """Return which plan is the fastest, which the smallest, and of methods how many fit and which to choose."""
    rows, names = document["rows"], row_names(document)
    fits = [row["fits"] for row in rows]
    usable = {name: row for name, row in zip(names, rows, strict=True) if row["fits"] is not False}
    found = []
    if any(fit is not None for fit in fits):
        more = "" if all(fits) else "; the notes say why the others do not"
        found.append(("fits", f"{fits.count(True)} of {len(fits)}{more}"))
    fastest = _best({name: row["speedup"] for name, row in usable.items()}, max, factor)
    smallest = _best({name: row["memory_peak"] for name, row in usable.items()}, min, _on_the_fullest)
    found += [("fastest", fastest)] * bool(fastest) + [("smallest", smallest)] * bool(smallest)
    if document.get("recommended") is not None:
        row = rows[document["recommended"]]
        first = max(usable.values(), key=lambda one: one["samples_per_second"] or 0.0)
        late = f"{plural(row['staleness'], 'update')} stale" if row["staleness"] else "no gradient is late"
        speed = factor(row["speedup"]) if row["speedup"] else units.rate(row["samples_per_second"])
        reasons = [names[document["recommended"]], speed, late, _on_the_fullest(row["memory_peak"])]
        if row["samples_per_second"] < first["samples_per_second"]:
            gain = "less late" if row["staleness"] < first["staleness"] else "smaller"
            reasons.append(f"about as fast as the fastest, and {gain}")
        found.append(("choose", "; ".join(reasons)))
        found.append(("set", "; ".join(row["set"]) or "nothing: it is what the spec says"))
    return found


def _on_the_fullest(value: float) -> str:
    return f"{memory(value)} on the fullest device"


def _best(values: Mapping[str, float | None], best: Callable[..., float], write: Callable[[float], str]) -> str:
    """Say which rows have the best of a number, "" where none has any; those whose numbers are written alike are no better than each other."""
    texts = {name: write(value) for name, value in values.items() if value is not None}
    if not texts:
        return ""
    written = write(best(value for value in values.values() if value is not None))
    first = [name for name, text in texts.items() if text == written]
    named = ["all of them"] if len(first) == len(texts) > 1 else first[:_NAMED]
    others = [f"{len(first) - _NAMED} more"] if len(first) > _NAMED and named != ["all of them"] else []
    return "; ".join([written, *named, *others])


def comparison_notes(document: Document) -> list[str]:
    """Return what is to be said of single rows, of the speed-ups, and of a window that is short."""
    rows = document["rows"]
    notes = [f"{name}: {row['note']}" for name, row in zip(row_names(document), rows, strict=True) if row["note"]]
    notes += ["a star is at the best that fits", f"speed-ups are over {document['speedup_over']}"]
    if _of_methods(document) and (window := rows[0]["accumulation"]) < (devices := rows[0]["devices"]):
        notes.append(
            f"an update averages {window} {noun(window, 'micro-batch', 'es')} in a pipeline of {devices} devices: methods that drain it wait "
            "most of the time, and replicas may have too few samples to share; with "
            f"method.accumulation = {2 * devices} they compare better, at larger updates"
        )
    return notes
