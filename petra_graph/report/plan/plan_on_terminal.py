"""A plan on a terminal: the network, the stages, the devices, the totals, and advice.

The warnings come last, where a reader's eye is when the prompt returns.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from petra_graph.program.plan_document import Document
from petra_graph.report import text_tables
from petra_graph.report.plan.plan_tables import delay_line, device_columns, stage_columns, title_lines, totals
from petra_graph.report.plan.short_labels import graph_lines

_OF_LIMIT = "bars: of the limit"
_OF_FULLEST = "bars: of the limit, or else of the fullest device's memory"


def plan_text(document: Document, *, width: int, colour: bool = False, all_stages: bool = False) -> str:
    """Write a plan for a terminal.

    Args:
        width: of the terminal, in columns; 60 are enough.
        colour: write ANSI escapes.
        all_stages: show every stage and device, where there are more than 40 of them too.
    """
    return text_tables.render(_sections(document, width, all_stages), width=width, colour=colour)


def _sections(document: Document, width: int, whole: bool) -> Iterator[RenderableType]:
    stages, devices = document["stages"], document["devices"]
    network, training = title_lines(document)
    yield Text(network, "bold")
    yield Text(training)
    yield text_tables.heading("graph")
    yield from map(text_tables.indented, graph_lines(document["nodes"]))
    yield text_tables.heading("stages", _shortened(len(stages), whole))
    heaviest = max(range(len(stages)), key=lambda row: stages[row]["bytes"]["total"])
    slowest = max(range(len(stages)), key=lambda row: sum(stages[row]["seconds"].values()))
    rows = text_tables.rows_shown(len(stages), whole, (heaviest, slowest))
    yield from text_tables.packed(stage_columns(document, max(16, width // 4)), rows, width)
    if known := delay_line(document):
        yield text_tables.indented(known)
    note = _OF_LIMIT if all(device["memory_bytes"] for device in devices) else _OF_FULLEST
    yield text_tables.heading("devices", _shortened(len(devices), whole) or note)
    fullest = max(range(len(devices)), key=lambda row: devices[row]["bytes"]["total"])
    busiest = max(range(len(devices)), key=lambda row: devices[row]["busy_seconds_per_tick"])
    rows = text_tables.rows_shown(len(devices), whole, (fullest, busiest))
    columns = device_columns(document, max(16, width // 5), max(8, min(30, width // 8)))
    yield from text_tables.packed(columns, rows, width)
    yield Text()
    yield text_tables.side_by_side(
        text_tables.table(text_tables.pair_columns(title, pairs)) for title, pairs in totals(document)
    )
    for name, mark, style in (("assumptions", "-", ""), ("warnings", "!", "yellow")):
        if document[name]:
            yield text_tables.heading(name)
            yield from (text_tables.indented(text, mark, style) for text in document[name])


def _shortened(rows: int, whole: bool) -> str:
    shown = len(text_tables.rows_shown(rows, whole))
    return "" if shown == rows else f"the ends of {rows:,}, the heaviest and the slowest: --stages all shows them all"
