"""Plans and runs as values that a notebook shows."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch

    from petra_graph.api.functions import Changes
    from petra_graph.inference.evaluate import Evaluation
    from petra_graph.inference.export import Exported, Format
    from petra_graph.inference.network import Network
    from petra_graph.inference.predict import Prediction
    from petra_graph.program.plan_document import Document
    from petra_graph.report.notebook_views import NotebookFigure


class PlanView:
    """A plan, which a notebook shows as the page of `petra-graph plan --format html`."""

    def __init__(self, document: Document) -> None:
        self.document = document
        """The plan as `petra-graph plan --json` prints it."""

    def text(self, width: int = 120) -> str:
        """Return the plan as a terminal shows it."""
        from petra_graph.report.plan.plan_on_terminal import plan_text

        return plan_text(self.document, width=width, colour=False)

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


class Run:
    """A run's directory, whatever became of the run."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)

    @property
    def summary(self) -> Mapping[str, Any]:
        """How the run ended: its status, its latest means, its throughput; empty while it goes on."""
        from petra_graph.record.recorded_run import read_json

        return read_json(self.directory / "summary.json", dict) or {}

    @property
    def status(self) -> str:
        """How the run ended: "done", "interrupted" or "failed"; "under way" without a summary."""
        return str(self.summary.get("status", "under way"))

    @property
    def names(self) -> list[str]:
        """The names of all metrics that were recorded."""
        from petra_graph.record.metrics import read_events

        return sorted({event["name"] for event in read_events(self.directory)})

    def metrics(self, name: str) -> list[tuple[int, float]]:
        """Return what was recorded of a metric, as "test/loss": its steps, counted in micro-batches, with its values."""
        from petra_graph.record.metrics import read_events

        return [(event["step"], event["value"]) for event in read_events(self.directory) if event["name"] == name]

    def load(self, *, weights: str | Mapping[str, torch.Tensor] | None = None) -> Network:
        """Return the network as an ordinary module, as `petra_graph.load`."""
        from petra_graph.api.functions import load

        return load(self, weights=weights)

    def evaluate(self, changes: Changes | None = None, **options: Any) -> Evaluation:
        """Evaluate the network, as `petra_graph.evaluate`."""
        from petra_graph.api.functions import evaluate

        return evaluate(self, changes, **options)

    def predict(
        self, samples: str | Path | Sequence[str | Path] | np.ndarray | torch.Tensor, **options: Any
    ) -> list[Prediction]:
        """Ask the network about samples, as `petra_graph.predict`."""
        from petra_graph.api.functions import predict

        return predict(self, samples, **options)

    def export(self, form: Format, file: str | Path | None = None, **options: Any) -> Exported:
        """Write the network for other programs, as `petra_graph.export`."""
        from petra_graph.api.functions import export

        return export(self, form, file, **options)

    def plot(self) -> NotebookFigure:
        """Return a figure, as SVG: loss and share of correct samples over training."""
        from petra_graph.report.notebook_views import run_figure

        return run_figure(self.directory)

    def __repr__(self) -> str:
        from petra_graph.report.progress import summary_lines

        summary = self.summary
        return "\n".join(summary_lines(summary)) if summary else f"a run under way in {self.directory}"

    def _repr_html_(self) -> str:
        from petra_graph.report.notebook_views import run_table

        return run_table(self.summary) if self.summary else f"<p>{html.escape(repr(self))}</p>"


def _frame(page: str) -> str:
    """Return a page in a frame of its own, so that its style stays there."""
    return f'<iframe srcdoc="{html.escape(page)}" style="width: 100%; height: 40em; border: 0" title="plan"></iframe>'
