"""Figures and tables of plans and runs for notebooks: the drawings of the pages, each as one SVG that needs no page."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen
from markupsafe import Markup

from petra_graph.kinds.metric import scales_in
from petra_graph.program.plan_document import Document
from petra_graph.record.recorded_run import read_run
from petra_graph.record.run_directory import write_output
from petra_graph.report.drawing.svg_markup import Drawing, in_a_column, in_a_row, svg, tag, text_width, words
from petra_graph.report.metric_text import numbers, tested
from petra_graph.report.page_templates import resource
from petra_graph.report.plan.plan_comparison import varied_charts
from petra_graph.report.plan.plan_contents import parts_held
from petra_graph.report.plan.stage_rows import stage_bars, time_bars
from petra_graph.report.run.run_curves import run_charts

_MARGIN, _SIZE = 12, 12
_DRAWN = ("loss", "top1")
"""Metrics of a run's figure."""
_SCOPE = "svg.petra-graph"
_LETTERS = f'{_SCOPE} {{ font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }}'
_RULE = re.compile(r"([^{}]+)(\{[^{}]*\})")


@frozen
class NotebookFigure:
    """A figure as SVG, which a notebook shows."""

    svg: str

    def save(self, path: str | Path) -> None:
        """Write the figure to a file.

        Raises:
            RunFailed: the file cannot be written.
        """
        write_output(Path(path), self.svg)

    def __repr__(self) -> str:
        return "a figure; save(PATH) writes it as SVG"

    def _repr_svg_(self) -> str:
        return self.svg


def plan_figure(document: Document) -> NotebookFigure:
    """Draw memory and busy time of every stage of a plan."""
    held = parts_held(stage["bytes"] for stage in document["stages"])
    memory = in_a_column(_legend((part.name, part.colour) for part in held), in_a_row(*stage_bars(document)))
    verbs = _legend((verb, f"var(--{verb})") for verb in ("forward", "backward"))
    time = in_a_column(verbs, in_a_row(*time_bars(document)))
    panels = _titled("memory of a stage", memory), _titled("time of a micro-batch", time)
    return _figure(in_a_column(*panels, gap=_MARGIN))


def run_figure(directory: Path) -> NotebookFigure:
    """Draw loss, share of correct samples, and listed metrics of a run over its epochs."""
    run = read_run(directory)
    charts = [one for one in run_charts(run) if one.title in _DRAWN or one.title.partition("/")[0] in run.scales]
    panels = [_titled(chart.title, chart.drawing) for chart in charts]
    return _figure(in_a_row(*panels or [_titled("No epoch has ended yet.", svg([], 340, 20))], gap=2 * _MARGIN))


def varied_figure(document: Document) -> NotebookFigure:
    """Draw the throughput of plans that were varied."""
    panels = [_titled(chart.title, chart.drawing) for chart in varied_charts(document)]
    return _figure(in_a_row(*panels or [_titled("Every combination is refused.", svg([], 340, 20))]))


def _titled(name: str, drawing: Drawing) -> Drawing:
    heading = svg([words(name, 0, _SIZE + 2, class_="tail", font_size=_SIZE + 2)], drawing.width, 2 * _SIZE)
    return in_a_column(heading, drawing)


def _legend(entries: Iterable[tuple[str, str]]) -> Drawing:
    parts, x = [], 0.0
    for name, colour in entries:
        parts += [tag("rect", x=x, y=2, width=_SIZE, height=_SIZE, fill=colour)]
        parts += [words(name, x + _SIZE + 5, _SIZE, font_size=_SIZE)]
        x += text_width(name, _SIZE) + 3 * _SIZE
    return svg(parts, x, 2 * _SIZE)


def _figure(content: Drawing) -> NotebookFigure:
    """Return a figure with a ground and a style of its own, which does not reach anything else on a notebook's page."""
    style = Markup(_LETTERS + "\n" + _RULE.sub(_scoped, resource("drawing/drawing.css")))  # noqa: S704  a file of this package
    width, height = content.width + 2 * _MARGIN, content.height + 2 * _MARGIN
    ground = tag("rect", width=width, height=height, class_="under")
    inside = tag("g", content, transform=f"translate({_MARGIN} {_MARGIN})")
    parts = [tag("style", style), ground, inside]
    return NotebookFigure(str(svg(parts, width, height, xmlns="http://www.w3.org/2000/svg", class_="petra-graph")))


def _scoped(rule: re.Match[str]) -> str:
    """Return a rule of a style sheet for our figures alone."""
    selectors = (one.strip() for one in rule[1].split(","))
    return "\n" + ", ".join(_SCOPE if one == ":root" else f"{_SCOPE} {one}" for one in selectors) + f" {rule[2]}"


def run_table(summary: Mapping[str, Any]) -> str:
    """Write a run's summary as an HTML table."""
    rows = {
        "status": summary["status"],
        "method": f"{summary['method']}, {summary['schedule']}, accumulation {summary['accumulation']}",
        "stages": summary["stages"],
        "parameters": f"{summary['parameters']:,}",
        "epochs": summary["epochs"],
        "train": numbers(summary["train"]) if summary["train"] else "",
        "test": tested(summary["test"], summary.get("tested", ""), scales_in(summary.get("metrics")))
        if summary["test"]
        else "",
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
