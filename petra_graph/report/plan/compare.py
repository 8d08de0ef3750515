"""Several plans of one network in a table: its methods, or its device counts.

A value that does not apply, or that belongs to a plan that does not exist, is null in the document and a dash here; the
row's note says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from attrs import evolve
from rich.console import RenderableType
from rich.text import Text

from petra_graph.program.plan_document import Document
from petra_graph.report.plan.labels import schedule_label
from petra_graph.report.plan.screen import DEFAULT_WIDTH, heading, indented, render
from petra_graph.report.plan.tables import Column, bar, number_column, packed, text_column
from petra_graph.report.plan.units import (
    BINARY,
    DECIMAL,
    FLOPS,
    PLAIN,
    SECONDS,
    ColumnUnit,
    Units,
    factor,
    number,
    one_line,
    percent,
)

_BEST = "bold green"
_BAR_CELLS = 12


def compare_text(comparison: Document, *, width: int = DEFAULT_WIDTH, colour: bool = False) -> str:
    """Write the costs of each method on one network and the same devices; the best of a column is bold."""
    rows = comparison["rows"]
    values = partial(_values, rows)
    unit = BINARY.column([value or 0 for value in values("memory_total")])
    names = [f"{row['method']}, {schedule_label(row['schedule'])}" for row in rows]
    columns = [
        Column(head="method, schedule", cells=names, left=True),
        _compared_column("memory\ntotal", BINARY, values("memory_total"), "memory", unit),
        _compared_column("peak\ndevice", BINARY, values("memory_peak"), "memory", unit),
        text_column("memory\nsaved", values("saving"), "memory", percent),
        number_column("paper's\ncount", DECIMAL, values("paper_total"), "memory"),
        text_column("saved\nthere", values("paper_saving"), "memory", percent),
        text_column("stale\nupdates", values("staleness"), "memory", number),
        number_column("sent", BINARY, values("channel_bytes"), "work"),
        number_column("work", FLOPS, values("flops"), "work"),
        _compared_column("a micro-\nbatch", SECONDS, values("seconds_per_micro_batch"), "work"),
        text_column("speed-up", values("speedup"), "work", factor),
    ]
    title = f"{one_line(comparison['name'])}: methods compared, micro-batch {comparison['micro_batch']}"
    return render(_parts(title, columns, rows, width), width=width, colour=colour)


def scale_text(scaling: Document, *, width: int = DEFAULT_WIDTH, colour: bool = False) -> str:
    """Write the throughput and the costs of a network on more and more devices."""
    rows = scaling["rows"]
    values = partial(_values, rows)
    bars = [bar(share or 0.0, _BAR_CELLS) for share in values("efficiency")]
    columns = [
        text_column("devices", values("devices")),
        text_column("stages", values("stages"), "speed"),
        text_column("replicas", values("replicas"), "speed"),
        number_column("throughput\nsamples/s", PLAIN, values("samples_per_second"), "speed"),
        text_column("speed-up", values("speedup"), "speed", factor),
        text_column("efficiency", values("efficiency"), "speed", percent),
        Column(head="", cells=bars, group="speed", left=True, styles=["blue"] * len(rows)),
        number_column("peak\ndevice", BINARY, values("memory_peak"), "cost"),
        number_column("to fill", SECONDS, values("fill_seconds"), "cost"),
        text_column("stale\nupdates", values("staleness"), "cost", number),
        number_column("busiest\nlink", BINARY, values("bytes_per_link"), "cost"),
    ]
    title = f"{one_line(scaling['name'])}: throughput by number of devices"
    return render(_parts(title, columns, rows, width), width=width, colour=colour)


def _values(rows: Sequence[Document], key: str) -> list[Any]:
    return [row[key] for row in rows]


def _compared_column(
    head: str, units: Units, values: Sequence[float | None], group: str, unit: ColumnUnit | None = None
) -> Column:
    """Return a column of numbers of which the least is marked, where they differ."""
    known = {value for value in values if value is not None}
    best = min(known) if len(known) > 1 else None
    styles = [_BEST if value is not None and value == best else "" for value in values]
    return evolve(number_column(head, units, values, group, unit), styles=styles)


def _parts(title: str, columns: Sequence[Column], rows: Sequence[Document], width: int) -> Iterator[RenderableType]:
    yield Text(title, "bold")
    for table in packed(columns, range(len(rows)), width):
        yield Text()
        yield table
    noted = [(name, row["note"]) for name, row in zip(columns[0].cells, rows, strict=True) if row.get("note")]
    if noted:
        yield heading("notes")
        yield from (indented(f"{name}: {note}") for name, note in noted)
