"""What every view tells of a plan first: names and values, written for people."""

from __future__ import annotations

from collections import Counter

from petra_graph.report.plan.document import PARTS, RARE, Document, parts_of
from petra_graph.report.plan.labels import schedule_label
from petra_graph.report.plan.units import BINARY, column_of, count, one_line, percent, plural, rate, seconds, times

Rows = list[tuple[str, str]]

_PAPER = (
    ("model", "model"),
    ("input_buffer", "input buffer"),
    ("parameter_buffer", "parameter buffer"),
    ("total", "total"),
)


def title_lines(document: Document) -> tuple[str, str]:
    """Return what the network is, and how it is trained, a line each."""
    kinds = Counter(node["kind"] for node in document["nodes"])
    of_kinds = ", ".join(f"{kinds[kind]:,} {kind}" for kind in ("reversible", "buffered", "head") if kinds[kind])
    network = (
        f"{one_line(document['name'])}: {plural(len(document['nodes']), 'node')} ({of_kinds}), "
        f"{count(document['totals']['parameters'])} parameters"
    )
    training = (
        f"{document['method']}, schedule {schedule_label(document['schedule'])}, accumulation "
        f"{document['accumulation']}, micro-batch {document['micro_batch']}: "
        f"{plural(len(document['stages']), 'stage')} on {plural(len(document['devices']), 'device')}"
    )
    if document.get("replicas", 1) > 1:
        training += f", {document['replicas']} times"
    return network, training


def timing_rows(document: Document) -> Rows:
    """Return what the simulation predicts, as names and values."""
    timing = document["timing"]
    busy = timing["utilisation"]
    return [
        ("throughput", rate(timing["samples_per_second"])),
        ("speed-up over stages in turn", times(timing["speedup_over_reversible_backprop"])),
        ("tick", seconds(timing["tick_seconds"])),
        ("bubble", percent(timing["bubble_fraction"])),
        ("devices busy, least, most", f"{percent(min(busy))}, {percent(max(busy))}" if busy else "unknown"),
        ("to fill the pipeline", seconds(timing["fill_seconds"])),
        ("to drain it", seconds(timing["drain_seconds"])),
    ]


def memory_rows(document: Document) -> tuple[str, Rows]:
    """Return the memory of all stages by what it is for, the total last, and the unit that it is in."""
    counts = document["totals"]["bytes"]
    parts = parts_of(counts)
    unit = column_of(BINARY, [counts["total"]])
    rows = [(part.name, unit.digits(parts[part.key])) for part in PARTS if parts[part.key] or part.key not in RARE]
    return unit.unit, [*rows, ("total", unit.digits(counts["total"]))]


def paper_rows(document: Document) -> Rows:
    """Return the memory as the paper counts it in Table 3, in its GB of 10**9 bytes, the total last."""
    return [(name, f"{document['paper_accounting'][key] / 1e9:,.2f}") for key, name in _PAPER]
