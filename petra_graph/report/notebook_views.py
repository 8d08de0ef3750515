"""Figures and tables of plans and runs for notebooks; figures need matplotlib (the extra `plot`)."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from petra_graph.errors import SpecError
from petra_graph.program.plan_document import Document
from petra_graph.record.recorded_run import read_run
from petra_graph.report.progress import numbers, tested

if TYPE_CHECKING:
    import matplotlib.figure

_BLUE, _RED = "#1b6ca8", "#c8553d"
_MIB = 2**20


def plan_figure(document: Document) -> matplotlib.figure.Figure:
    """Draw memory and busy time of every stage of a plan.

    Raises:
        SpecError: matplotlib is not installed.
    """
    figure, (memory, time) = _figure()
    stages = document["stages"]
    positions = [stage["index"] for stage in stages]
    memory.bar(positions, [stage["bytes"]["total"] / _MIB for stage in stages], color=_BLUE)
    memory.set(title="memory of a stage", xlabel="stage", ylabel="MiB")
    forward = [1e3 * stage["seconds"]["forward"] for stage in stages]
    backward = [1e3 * stage["seconds"]["backward"] for stage in stages]
    time.bar(positions, forward, color=_BLUE, label="forward")
    time.bar(positions, backward, bottom=forward, color=_RED, label="backward", hatch="//", edgecolor="white")
    time.set(title="time of a micro-batch", xlabel="stage", ylabel="ms")
    time.legend(frameon=False)
    return figure


def run_figure(directory: Path) -> matplotlib.figure.Figure:
    """Draw loss and share of correct samples of a run over its epochs.

    Raises:
        SpecError: matplotlib is not installed.
    """
    figure, (left, right) = _figure()
    metrics = read_run(directory).metrics
    for axes, quantity, factor, unit in ((left, "loss", 1, "loss"), (right, "top1", 100, "correct (%)")):
        for split, colour, line in (("train", _BLUE, "--"), ("test", _RED, "-")):
            points = [(point.epoch, factor * point.value) for point in metrics.get(f"{split}/{quantity}", ())]
            if points:
                axes.plot(*zip(*points, strict=True), line, color=colour, label=split, marker="o", markersize=3)
        axes.set(xlabel="epoch", ylabel=unit)
        if axes.lines:
            axes.legend(frameon=False)
    return figure


def run_table(summary: Mapping[str, Any]) -> str:
    """Write a run's summary as an HTML table."""
    rows = {
        "status": summary["status"],
        "method": f"{summary['method']}, {summary['schedule']}, accumulation {summary['accumulation']}",
        "stages": summary["stages"],
        "parameters": f"{summary['parameters']:,}",
        "epochs": summary["epochs"],
        "train": numbers(summary["train"]) if summary["train"] else "",
        "test": tested(summary["test"], summary.get("tested", "")) if summary["test"] else "",
        "samples a second": summary["samples_per_second"],
        "directory": summary["directory"],
    }
    cells = "".join(
        f'<tr><th style="text-align: left">{html.escape(key)}</th>'
        f'<td style="text-align: left">{html.escape(str(value))}</td></tr>'
        for key, value in rows.items()
        if value not in {"", None}
    )
    return f"<table><caption>{html.escape(str(summary['name']))}</caption>{cells}</table>"


def _figure() -> tuple[matplotlib.figure.Figure, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SpecError("figures need matplotlib, which is not installed", "pip install 'petra-graph[plot]'") from None

    class Shown(Figure):
        """A figure that a notebook shows, though pyplot does not know of it."""

        def _repr_png_(self) -> bytes:
            content = io.BytesIO()
            self.savefig(content, format="png", dpi=100)
            return content.getvalue()

    figure = Shown(figsize=(9, 3.2), layout="constrained", facecolor="white")
    return figure, figure.subplots(1, 2)
