"""A table of plans as a value, which the verb `plan` asks for by the joints `compare` and `scale`, and by `vary` of petra-graph-studies."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from petra_graph.planning.plan_spec import Planner
from petra_graph.program.plan_document import Document
from petra_graph.report import text_tables
from petra_graph.report.plan.plan_on_terminal import assumption_lines
from petra_graph_report.compare.compare_plans import compare
from petra_graph_report.compare.comparison_tables import comparison_of
from petra_graph_report.compare.scale_plans import device_counts, scale


class PlanTable:
    """Plans of one network next to each other."""

    def __init__(self, document: Document) -> None:
        self.document = document
        """The plans as `petra-graph plan --json` prints them: `rows`, and of `--vary` the `values` of each."""

    def text(self, width: int = 80, *, verbose: bool = False, colour: bool = False) -> str:
        """Return the table as a terminal of `width` columns shows it, with every assumption if `verbose`, and ANSI escapes if `colour`."""
        return text_tables.render(self._parts(width, verbose=verbose), width=width, colour=colour)

    def html(self) -> str:
        """Return the table as one page that needs no other file."""
        from petra_graph_report.compare.comparison_page import comparison_page

        return comparison_page(self.document)

    def __repr__(self) -> str:
        return self.text()

    def _parts(self, width: int, *, verbose: bool) -> Iterator[RenderableType]:
        comparison = comparison_of(self.document)
        yield Text(comparison.title, "bold")
        if comparison.answers:
            yield text_tables.worded((answer.question, str(answer)) for answer in comparison.answers)
        yield Text()
        for _, columns in comparison.tables:
            yield from text_tables.packed(columns, width)
        for title, lines in comparison.notes:
            yield text_tables.heading(title)
            yield from map(text_tables.indented, lines)
        yield from assumption_lines(comparison.assumptions, verbose=verbose)


def compare_methods(planner: Planner) -> PlanTable:
    return PlanTable(compare(planner))


def scale_devices(planner: Planner, counts: str) -> PlanTable:
    """Return the table of what `--scale COUNTS` lists."""
    return PlanTable(scale(planner, device_counts(counts)))
