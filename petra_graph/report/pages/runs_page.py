"""Runs as a page: their groups, the best first, curves, tables; of a single run also what its stages took."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from petra_graph.compiler.plan import read_plan
from petra_graph.errors import SpecError
from petra_graph.plugins.loss_and_metric import scale_of
from petra_graph.record.run_directory import PLAN, RecordedRun, find_run, read_run, run_directories, write_output
from petra_graph.report.pages.page import LONGEST_NAME, Section, drawn, render_page
from petra_graph.report.planned_and_measured import compare_with_plan, compared_tables
from petra_graph.report.run_groups import RunGroup, group_columns, group_runs, judged_by, run_records, run_row
from petra_graph.report.tables import name_column
from petra_graph.units import bounded, one_line, percent, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FILE = "report.html"
_SPREAD = "The best is first. A value is the mean ± standard deviation over a group's seeds; of several runs with one seed the longest counts."
_BAND = "A line is the mean over a group's runs, as far as all of them came; its band reaches from the least to the largest."
_MEASURED = (
    "Measured are the host's seconds for one operation, in the mean since the latest start, with what the process did for it; none of stages on CUDA "
    "devices. The memory of a process is its growth since just before its stages were built; on CUDA devices, what torch's allocator has handed out."
)
_MOST_CURVES = 8  # groups whose curves are drawn over one another: the best ones
_MOST_POINTS = 300
_SPLITS = ("train", "test", "validation")
_OF_STEPS = {"train/micro_batch_loss", "train/learning_rate"}  # metrics of micro-batches, not of epochs


def report_runs(names: Sequence[str], output: Path | None = None) -> dict[str, Any]:
    """Write the page of some runs, which are named by directories, "latest", or folders of runs, and return its path with the figures of the runs.

    Without `output` it is report.html, in the directory of the run, or of several runs in the current folder. Raises SpecError: one is not
    a run's directory, or is damaged; or what draws is not installed. RunFailed: the file cannot be written.
    """
    directories = [directory for name in names for directory in run_directories(find_run(name))]
    found = [read_run(directory) for directory in {each.resolve(): each for each in directories}.values()]
    if not found:
        raise SpecError(f"there is no run in {', '.join(names)}")
    path = output or (found[0].directory / FILE if len(found) == 1 else Path(FILE))
    write_output(path, runs_page(found))
    return {"output": str(path), "runs": run_records(found)}


def runs_page(runs: Sequence[RecordedRun]) -> str:
    """Write runs as a page. Raises SpecError: what draws is not installed."""
    groups, names = group_runs(runs), ", ".join(dict.fromkeys(run.name for run in runs))
    few = f" Only the {_MOST_CURVES} best of {len(groups)} groups." if len(groups) > _MOST_CURVES else ""
    named = [(group.name, run) for group in groups for run in group.runs]
    records = run_records([run for _, run in named])
    rows = [{"group": name} | run_row(record) for (name, _), record in zip(named, records, strict=True)]
    listed_runs = [name_column(head, [row[head] for row in rows], 200) for head in rows[0]]
    sections = [
        Section(name="groups", note=f"{judged_by(groups)} {_SPREAD}", tables=[("", group_columns(groups))]),
        Section(name="curves", note=_BAND + few, pictures=curves(groups[:_MOST_CURVES])),
        Section(name="runs", tables=[("", listed_runs)]),
    ]
    if len(runs) == 1:
        (run,) = runs
        path, nodes = run.directory / PLAN, run.resolved["partition"]["stages"]
        plan = read_plan(path.read_bytes(), str(path)) if path.exists() else None
        tables = compared_tables(compare_with_plan(plan, len(nodes), run.processes), nodes)
        sections += [
            Section(name="steps", pictures=_charts_of_one(run)),
            Section(name="stages", note=_MEASURED, tables=tables),
        ]
    failed = [run for run in runs if run.status == "failed"]  # the table has the beginning of the reason
    return render_page(
        f"{names}: {plural(len(runs), 'run')}",
        sections,
        about=[str(run.directory) for run in runs[:1] if len(runs) == 1],
        warnings=[f"{run.directory.name} failed: {text}" for run in failed for text in run.summary.get("error", [])],
    )


# --- curves ---

Values = Mapping[int, Sequence[float]]  # of a line: at each epoch or micro-batch, those of which it is the mean


def curves(groups: Sequence[RunGroup]) -> list[str]:
    """Return a chart for each metric, of a single run with all splits, of several for each split with their groups."""
    metrics = dict.fromkeys(name for group in groups for run in group.runs for name in run.metrics)
    parted = [metric.partition("/") for metric in metrics if metric not in _OF_STEPS]
    seen = dict.fromkeys(name for part, _, name in parted if part in _SPLITS)
    scales = {label: scale for group in groups for label, scale in group.scales.items()}
    evaluated = "validation" if any(name.startswith("validation/") for name in metrics) else "test"
    found: list[str] = []
    for name in sorted(seen, key=lambda name: name != "loss"):
        charts = {name: {part: _values_of(groups[0], f"{part}/{name}") for part in _SPLITS}}
        if sum(len(group.runs) for group in groups) > 1:
            charts = {
                f"{part} {name}": {group.name: _values_of(group, f"{part}/{name}") for group in groups}
                for part in (evaluated, "train")
            }
        share = scale_of(name, scales).share
        found += [one for title, lines in charts.items() for one in line_chart(title, lines, "epoch", shares=share)]
    return found


def _values_of(group: RunGroup, metric: str) -> Values:
    """Return a metric's values in the runs that have it, epoch by epoch, as far as all of them came."""
    held = [{point.epoch: point.value for point in run.metrics.get(metric, ())} for run in group.by_seed]
    of_runs = [values for values in held if values]
    common = sorted(set.intersection(*map(set, of_runs))) if of_runs else []
    return {epoch: [values[epoch] for values in of_runs] for epoch in common}


def _charts_of_one(run: RecordedRun) -> list[str]:
    """Return the loss of micro-batches, a point the mean of consecutive ones where there are many; and each metric that callbacks record by stage.

    Of those, as probe/cosine_to_delayed/stage-03, the mean over the stages is drawn.
    """
    points, by_stage = run.metrics.get("train/micro_batch_loss", ()), defaultdict[str, dict[int, list[float]]](dict)
    size = max(1, math.ceil(len(points) / _MOST_POINTS))
    parts = [points[at : at + size] for at in range(0, len(points), size)]
    means = {part[-1].step: [point.value for point in part] for part in parts}
    charts = line_chart("micro-batch loss: means, from the least to the largest", {"": means}, "micro-batch")
    for metric, values in run.metrics.items():
        name, _, stage = metric.rpartition("/stage-")
        if name and stage.isdecimal():
            for point in values:
                by_stage[name].setdefault(point.epoch, []).append(point.value)
    for name in sorted(by_stage):
        charts += line_chart(f"{name}: means over the stages", {"": by_stage[name]}, "epoch")
    return charts


def line_chart(title: str, lines: Mapping[str, Values], x_name: str, *, shares: bool = False) -> list[str]:
    """Draw lines, each in a band from the least to the largest value, with its last value in the legend; nothing where none has two points.

    `shares` writes y as percentages.
    """
    if not any(len(values) > 1 for values in lines.values()):
        return []

    def draw(figure: Figure, axis: Axes) -> None:
        for name, values in lines.items():
            if values:
                xs, means = list(values), list(map(fmean, values.values()))
                last = percent(means[-1], 2) if shares else f"{means[-1]:,.4g}"
                label = ": ".join(filter(None, [bounded(one_line(name), LONGEST_NAME), last]))
                (line,) = axis.plot(xs, means, label=label)
                low, high = list(map(min, values.values())), list(map(max, values.values()))
                axis.fill_between(xs, low, high, color=line.get_color(), alpha=0.18, linewidth=0)
        axis.set_xlabel(x_name)
        axis.locator_params(axis="x", nbins=5, integer=True)
        if shares:
            axis.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
        figure.legend(loc="outside lower left")

    return [drawn(title, (4.6, 2.9), draw)]
