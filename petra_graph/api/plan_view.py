"""A plan, or a table of plans, as a value that a notebook shows."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from petra_graph.program.plan_document import Document
    from petra_graph.report.notebook_views import NotebookFigure


class PlanView:
    """A plan, which a notebook shows as the page of `petra-graph plan --format html`."""

    def __init__(self, document: Document) -> None:
        self.document = document
        """The plan as `petra-graph plan --json` prints it."""

    def text(self, width: int = 80, *, verbose: bool = False) -> str:
        """Return the plan as a terminal of `width` columns shows it, with every table and assumption if `verbose`."""
        from petra_graph.report.plan.plan_on_terminal import plan_text

        return plan_text(self.document, width=width, verbose=verbose)

    def html(self) -> str:
        """Return the plan as one page that needs no other file."""
        from petra_graph.report.plan.plan_page import plan_page

        return plan_page(self.document)

    def plot(self) -> NotebookFigure:
        """Return a figure, as SVG: memory and busy time of every stage."""
        from petra_graph.report.notebook_views import plan_figure

        return plan_figure(self.document)

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return _frame(self.html())


class PlanTable:
    """Plans of all combinations of some values, which a notebook shows as the page of `petra-graph plan --vary --format html`."""

    def __init__(self, document: Document) -> None:
        self.document = document
        """The plans as `petra-graph plan --vary ... --json` prints them: `rows`, with the `values` of each."""

    def text(self, width: int = 80, *, verbose: bool = False) -> str:
        """Return the table as a terminal of `width` columns shows it, with every assumption if `verbose`."""
        from petra_graph.report.plan.plan_comparison import comparison_of, comparison_text

        return comparison_text(comparison_of(self.document), width=width, verbose=verbose)

    def html(self) -> str:
        """Return table and picture as one page that needs no other file."""
        from petra_graph.report.plan.plan_comparison import comparison_of, comparison_page

        return comparison_page(comparison_of(self.document))

    def plot(self) -> NotebookFigure:
        """Return a figure, as SVG: throughput over the values of the first key, a line for each combination of the others."""
        from petra_graph.report.notebook_views import varied_figure

        return varied_figure(self.document)

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return _frame(self.html())


def _frame(page: str) -> str:
    """Return a page in a frame of its own, so that its style reaches nothing else."""
    return f'<iframe srcdoc="{html.escape(page)}" style="width: 100%; height: 40em; border: 0" title="plan"></iframe>'
