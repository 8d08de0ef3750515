"""A plan on a terminal: what it is, where it runs, what it costs, and what to do about it.

The warnings come last, where a reader's eye is when the prompt returns.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from petra_graph.report.plan.document import Document
from petra_graph.report.plan.figures import Rows, memory_rows, paper_rows, timing_rows, title_lines
from petra_graph.report.plan.graph_text import graph_lines
from petra_graph.report.plan.screen import DEFAULT_WIDTH, heading, render
from petra_graph.report.plan.stage_tables import device_tables, stage_tables
from petra_graph.report.plan.tables import plain_table, rows_shown, side_by_side
from petra_graph.report.plan.units import one_line

_BARS = "bars: of the limit, or else of the fullest device's memory"


def plan_text(document: Document, *, width: int = DEFAULT_WIDTH, colour: bool = False, all_stages: bool = False) -> str:
    """Write a plan for a terminal.

    Args:
        document: the plan.
        width: of the terminal, in columns; 80 is enough.
        colour: write ANSI escapes.
        all_stages: show every stage and device, where there are more than 40 of them too.
    """
    return render(_sections(document, width, all_stages), width=width, colour=colour)


def _sections(document: Document, width: int, whole: bool) -> Iterator[RenderableType]:
    network, training = title_lines(document)
    yield Text(network, "bold")
    yield Text(training)
    yield heading("graph")
    for line in graph_lines(document["nodes"]):
        yield _hanging(line)
    yield heading("stages", _shortened(len(document["stages"]), whole))
    yield from _spaced(stage_tables(document, width, whole))
    note = "bars: of the limit" if all(device["memory_bytes"] for device in document["devices"]) else _BARS
    yield heading("devices", _shortened(len(document["devices"]), whole) or note)
    yield from _spaced(device_tables(document, width, whole))
    yield Text()
    unit, rows = memory_rows(document)
    totals = [
        _pairs(f"memory, all stages, {unit}", rows, total=True),
        _pairs("paper's accounting, GB", paper_rows(document), total=True),
        _pairs("time", timing_rows(document)),
    ]
    yield from _spaced(side_by_side(totals, width))
    if document["assumptions"]:
        yield heading("assumptions")
        yield from (_hanging(text, "-") for text in document["assumptions"])
    if document["warnings"]:
        yield heading("warnings")
        yield from (_hanging(text, "!", "yellow") for text in document["warnings"])


def _shortened(rows: int, whole: bool) -> str:
    shown = len(rows_shown(rows, whole))
    return "" if shown == rows else f"the ends of {rows:,}, the heaviest and the slowest: --stages all shows them all"


def _spaced(tables: Iterator[Table]) -> Iterator[RenderableType]:
    for place, table in enumerate(tables):
        if place:
            yield Text()
        yield table


def _pairs(title: str, rows: Rows, *, total: bool = False) -> Table:
    """Return names and values as a table, the last row emphasised where it is a total."""
    table = plain_table()
    table.add_column(Text(title), no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    for place, row in enumerate(rows, start=1):
        style = "bold" if total and place == len(rows) else ""
        table.add_row(*(Text(cell, style) for cell in row))
    return table


def _hanging(text: str, mark: str = "", style: str = "") -> RenderableType:
    """Return a paragraph whose later lines stand below its first word."""
    if not mark:
        return Padding(Text(one_line(text)), (0, 0, 0, 2))
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_row(Text(mark, style), Text(one_line(text), style))
    return Padding(grid, (0, 0, 0, 2))
