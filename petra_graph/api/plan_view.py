"""A plan, or a table of plans, as a value."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from petra_graph.program.plan_document import Document


class PlanView:
    """A plan."""

    def __init__(self, document: Document) -> None:
        self.document = document
        """The plan as `petra-graph plan --json` prints it."""

    def text(self, width: int = 80, *, verbose: bool = False) -> str:
        """Return the plan as a terminal of `width` columns shows it, with every table and assumption if `verbose`."""
        from petra_graph.report.plan.plan_on_terminal import plan_text

        return plan_text(self.document, width=width, verbose=verbose)

    def html(self) -> str:
        """Return the plan as one page that needs no other file; petra-graph-report writes it."""
        from petra_graph.registry.joints import writer_of

        return writer_of("html")(self.document)

    def __repr__(self) -> str:
        return self.text()


class PlanTable(PlanView):
    """Plans of all combinations of some values."""

    def __init__(self, document: Document) -> None:
        self.document = document
        """The plans as `petra-graph plan --vary ... --json` prints them: `rows`, with the `values` of each."""

    def text(self, width: int = 80, *, verbose: bool = False) -> str:
        """Return the table as a terminal of `width` columns shows it, with every assumption if `verbose`."""
        from petra_graph.report.plan.plan_comparison import comparison_of, comparison_text

        return comparison_text(comparison_of(self.document), width=width, verbose=verbose)
