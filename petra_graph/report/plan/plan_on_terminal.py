"""A plan on a terminal: six answers, the tables that are short or asked for, and the warnings.

The warnings come last, where a reader's eye is when the prompt returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from petra_graph.program.plan_document import Document
from petra_graph.report import text_tables
from petra_graph.report.plan.plan_answers import ASSUMPTIONS_PAGE, answers
from petra_graph.report.plan.plan_tables import (
    brief_stage_columns,
    delay_line,
    device_columns,
    keeps_line,
    stage_columns,
    title_lines,
    totals,
)
from petra_graph.report.plan.short_labels import graph_lines
from petra_graph.units import one_line

_OF_LIMIT = "bars: of the limit"
_OF_FULLEST = "bars: of the limit, or else of the fullest device's memory"


def plan_text(
    document: Document, *, width: int, colour: bool = False, stages: bool = False, verbose: bool = False
) -> str:
    """Write a plan for a terminal: the answers and the warnings, and the tables of stages and devices that are short.

    Args:
        width: of the terminal, in columns; 60 are enough.
        colour: write ANSI escapes.
        stages: write the table of stages with all its columns, however long it is.
        verbose: write everything.
    """
    parts = _sections(document, width, stages=stages or verbose, verbose=verbose)
    return text_tables.render(parts, width=width, colour=colour)


def _sections(document: Document, width: int, *, stages: bool, verbose: bool) -> Iterator[RenderableType]:
    devices, said = document["devices"], document["assumptions"]
    name, (network, training) = one_line(document["name"]), title_lines(document)
    yield Text(name, "bold")
    found = answers(document, "assumptions: --verbose" if said else "")
    yield text_tables.worded((answer.question, str(answer)) for answer in found)
    yield Text(f"\n{network.removeprefix(f'{name}: ')}\n{training}")
    if verbose:
        yield text_tables.heading("graph")
        yield from map(text_tables.indented, graph_lines(document["nodes"]))
    node_width = max(16, width // 4)
    if stages or text_tables.is_short(brief_stage_columns(document, node_width), width):
        yield text_tables.heading("stages")
        columns = (stage_columns if stages else brief_stage_columns)(document, node_width)
        yield from text_tables.packed(columns, width)
        yield from map(text_tables.indented, filter(None, (delay_line(document), keeps_line(document))))
    columns = device_columns(document, max(16, width // 5), max(8, min(30, width // 8)) if verbose else 0)
    if verbose or text_tables.is_short(columns, width):
        limits = all(device["memory_bytes"] for device in devices)
        yield text_tables.heading("devices", (_OF_LIMIT if limits else _OF_FULLEST) if verbose else "")
        yield from text_tables.packed(columns, width)
    if verbose:
        yield Text()
        yield text_tables.side_by_side(
            text_tables.table(text_tables.pair_columns(title, pairs)) for title, pairs in totals(document)
        )
    yield from assumption_lines(said, verbose=verbose)
    if document["warnings"]:
        yield text_tables.heading("warnings")
        yield from (text_tables.indented(text, "!", "yellow") for text in document["warnings"])


def assumption_lines(said: Sequence[str], *, verbose: bool) -> Iterator[RenderableType]:
    """Yield the assumptions of a plan, or a line that says where they are."""
    if said and not verbose:
        yield text_tables.heading("assumptions", f"{len(said)}: see --verbose, and {ASSUMPTIONS_PAGE}")
    elif said:
        yield text_tables.heading("assumptions")
        yield from (text_tables.indented(text, "-") for text in said)
