"""The overview of a plan that every view begins with: names and values, written for people."""

from __future__ import annotations

from collections import Counter

from petra_graph.program.plan_document import Document
from petra_graph.report.plan.document import MEMORY_PARTS, RARE_PARTS, bytes_by_part
from petra_graph.report.plan.labels import schedule_label
from petra_graph.report.plan.units import BINARY, count, factor, one_line, paper_memory, percent, plural, rate, seconds

Pairs = list[tuple[str, str]]
"""Names and values."""

_PAPER = ("model", "input_buffer", "parameter_buffer", "total")


def title_lines(document: Document) -> tuple[str, str]:
    """Return a line on the network, and a line on its training."""
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


def timing_rows(document: Document) -> Pairs:
    """Return the simulation's predictions."""
    timing = document["timing"]
    busy = timing["utilisation"]
    return [
        ("throughput", rate(timing["samples_per_second"])),
        ("speed-up over stages in turn", factor(timing["speedup_over_reversible_backprop"])),
        ("tick", seconds(timing["tick_seconds"])),
        ("bubble", percent(timing["bubble_fraction"])),
        ("devices busy, least, most", f"{percent(min(busy))}, {percent(max(busy))}" if busy else "unknown"),
        ("to fill the pipeline", seconds(timing["fill_seconds"])),
        ("to drain it", seconds(timing["drain_seconds"])),
    ]


def memory_rows(document: Document) -> tuple[str, Pairs]:
    """Return the memory of all stages by part, the total last, and the unit of the numbers."""
    counts = document["totals"]["bytes"]
    parts = bytes_by_part(counts)
    unit = BINARY.column([counts["total"]])
    shown = [part for part in MEMORY_PARTS if parts[part.key] or part.key not in RARE_PARTS]
    rows = [(part.name, unit.digits(parts[part.key])) for part in shown]
    return unit.name, [*rows, ("total", unit.digits(counts["total"]))]


def paper_rows(document: Document) -> Pairs:
    """Return the memory as the paper counts it in Table 3, in its GB of 10**9 bytes, the total last."""
    return [(key.replace("_", " "), paper_memory(document["paper_accounting"][key])) for key in _PAPER]
