"""A plan on a terminal: the network, the stages, the devices, the totals, and advice.

The warnings come last, where a reader's eye is when the prompt returns.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from petra_graph.program.plan_document import Document
from petra_graph.report.plan.columns import device_columns, stage_columns
from petra_graph.report.plan.graph_text import graph_lines
from petra_graph.report.plan.overview import Pairs, memory_rows, paper_rows, timing_rows, title_lines
from petra_graph.report.plan.screen import DEFAULT_WIDTH, heading, indented, render, spaced
from petra_graph.report.plan.tables import packed, pair_columns, rows_shown, side_by_side, table

_OF_LIMIT = "bars: of the limit"
_OF_FULLEST = "bars: of the limit, or else of the fullest device's memory"


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
    stages, devices = document["stages"], document["devices"]
    network, training = title_lines(document)
    yield Text(network, "bold")
    yield Text(training)
    yield heading("graph")
    yield from map(indented, graph_lines(document["nodes"]))
    yield heading("stages", _shortened(len(stages), whole))
    heaviest = max(range(len(stages)), key=lambda row: stages[row]["bytes"]["total"])
    slowest = max(range(len(stages)), key=lambda row: sum(stages[row]["seconds"].values()))
    rows = rows_shown(len(stages), whole, (heaviest, slowest))
    yield from spaced(packed(stage_columns(document, max(16, width // 4)), rows, width))
    note = _OF_LIMIT if all(device["memory_bytes"] for device in devices) else _OF_FULLEST
    yield heading("devices", _shortened(len(devices), whole) or note)
    fullest = max(range(len(devices)), key=lambda row: devices[row]["bytes"]["total"])
    busiest = max(range(len(devices)), key=lambda row: devices[row]["busy_seconds_per_tick"])
    rows = rows_shown(len(devices), whole, (fullest, busiest))
    columns = device_columns(document, max(16, width // 5), max(8, min(30, width // 8)))
    yield from spaced(packed(columns, rows, width))
    yield Text()
    unit, memory = memory_rows(document)
    totals = [
        _pairs(f"memory, all stages, {unit}", memory, total=True),
        _pairs("paper's accounting, GB", paper_rows(document), total=True),
        _pairs("time", timing_rows(document)),
    ]
    yield from spaced(side_by_side(totals, width))
    for name, mark, style in (("assumptions", "-", ""), ("warnings", "!", "yellow")):
        if document[name]:
            yield heading(name)
            yield from (indented(text, mark, style) for text in document[name])


def _shortened(rows: int, whole: bool) -> str:
    shown = len(rows_shown(rows, whole))
    return "" if shown == rows else f"the ends of {rows:,}, the heaviest and the slowest: --stages all shows them all"


def _pairs(title: str, pairs: Pairs, *, total: bool = False) -> Table:
    """Return names and values as a table, the last row emphasised where it is a total."""
    return table(pair_columns(title, pairs, [*[""] * (len(pairs) - 1), "bold"] if total else ()))
