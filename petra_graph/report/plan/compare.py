"""Several plans of one network in a table: its methods, or its device counts.

A value that does not apply, or of a plan that does not exist, is null in the document and a dash here; the row's note says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from petra_graph.report.plan.document import Document
from petra_graph.report.plan.labels import schedule_label
from petra_graph.report.plan.screen import DEFAULT_WIDTH, heading, render
from petra_graph.report.plan.tables import Field, bar, numbers_field, packed
from petra_graph.report.plan.units import (
    BINARY,
    COUNTS,
    DECIMAL,
    FLOPS,
    NOTHING,
    SECONDS,
    column_of,
    number,
    one_line,
    percent,
    times,
)

_BEST = "bold green"
_BAR_CELLS = 12


def compare_text(comparison: Document, *, width: int = DEFAULT_WIDTH, colour: bool = False) -> str:
    """Write what each method costs on one network and the same devices; the best of a column is bold."""
    rows = comparison["rows"]
    names = [f"{row['method']}, {schedule_label(row['schedule'])}" for row in rows]
    unit = column_of(BINARY, [row["memory_total"] or 0 for row in rows])
    fields = [
        Field(head="method, schedule", cells=names, group="", left=True),
        _least(
            numbers_field("memory\ntotal", "memory", BINARY, _values(rows, "memory_total"), unit), rows, "memory_total"
        ),
        _least(
            numbers_field("peak\ndevice", "memory", BINARY, _values(rows, "memory_peak"), unit), rows, "memory_peak"
        ),
        _texts("memory\nsaved", "memory", percent, rows, "saving"),
        numbers_field("paper's\ncount", "memory", DECIMAL, _values(rows, "paper_total")),
        _texts("saved\nthere", "memory", percent, rows, "paper_saving"),
        _texts("stale\nupdates", "memory", number, rows, "staleness"),
        numbers_field("sent", "work", BINARY, _values(rows, "channel_bytes")),
        numbers_field("work", "work", FLOPS, _values(rows, "flops")),
        _least(
            numbers_field("a micro-\nbatch", "work", SECONDS, _values(rows, "seconds_per_micro_batch")),
            rows,
            "seconds_per_micro_batch",
        ),
        _texts("speed-up", "work", times, rows, "speedup"),
    ]
    title = f"{one_line(comparison['name'])}: methods compared, micro-batch {comparison['micro_batch']}"
    return render(_parts(title, fields, rows, names, width), width=width, colour=colour)


def scale_text(scaling: Document, *, width: int = DEFAULT_WIDTH, colour: bool = False) -> str:
    """Write what a network gains from more devices."""
    rows = scaling["rows"]
    names = [str(row["devices"]) for row in rows]
    bars = [bar(row["efficiency"] or 0.0, _BAR_CELLS) for row in rows]
    fields = [
        Field(head="devices", cells=names, group=""),
        Field(head="stages", cells=[str(row["stages"]) for row in rows], group="speed"),
        Field(head="replicas", cells=[str(row["replicas"]) for row in rows], group="speed"),
        numbers_field("throughput\nsamples/s", "speed", COUNTS[:1], _values(rows, "samples_per_second")),
        _texts("speed-up", "speed", times, rows, "speedup"),
        _texts("efficiency", "speed", percent, rows, "efficiency"),
        Field(head="", cells=bars, group="speed", left=True, styles=["blue"] * len(rows)),
        numbers_field("peak\ndevice", "cost", BINARY, _values(rows, "memory_peak")),
        numbers_field("to fill", "cost", SECONDS, _values(rows, "fill_seconds")),
        _texts("stale\nupdates", "cost", number, rows, "staleness"),
        numbers_field("busiest\nlink", "cost", BINARY, _values(rows, "bytes_per_link")),
    ]
    title = f"{one_line(scaling['name'])}: throughput by number of devices"
    return render(_parts(title, fields, rows, names, width), width=width, colour=colour)


def _parts(
    title: str, fields: Sequence[Field], rows: Sequence[Document], names: Sequence[str], width: int
) -> Iterator[RenderableType]:
    yield Text(title, "bold")
    for table in packed(fields, range(len(rows)), width):
        yield Text()
        yield table
    notes = [f"{name}: {one_line(row['note'])}" for name, row in zip(names, rows, strict=True) if row.get("note")]
    if notes:
        yield heading("notes")
        yield from (Padding(Text(note), (0, 0, 0, 2)) for note in notes)


def _values(rows: Sequence[Document], key: str) -> list[Any]:
    return [row[key] for row in rows]


def _texts(head: str, group: str, write: Callable[[float], str], rows: Sequence[Document], key: str) -> Field:
    cells = [NOTHING if row[key] is None else write(row[key]) for row in rows]
    return Field(head=head, cells=cells, group=group)


def _least(field: Field, rows: Sequence[Document], key: str) -> Field:
    """Mark the least of a column, where it has several."""
    values = [row[key] for row in rows if row[key] is not None]
    best = min(values) if len(set(values)) > 1 else None
    styles = [_BEST if best is not None and row[key] == best else "" for row in rows]
    return Field(head=field.head, cells=field.cells, group=field.group, styles=styles)
