"""The charts of a run, or of several groups of runs over one another: what its events hold, metric by metric.

Several runs of a group, which differ in their seed alone, are one line: the mean, with a band from the least to the largest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from statistics import fmean

from petra_graph_report.line_chart import Chart, Line, Values
from petra_graph_report.run.metric_values import is_share
from petra_graph_report.run.recorded_run import Point, RecordedRun, quantity_and_stage
from petra_graph_report.run.run_groups import RunGroup

_MOST_POINTS = 300
_DECADES = 30.0
"""A loss that falls by this factor is drawn on a logarithmic axis."""
_SPLITS = ("train", "test", "validation")
STEPS = ("train/micro_batch_loss", "train/learning_rate")
"""Metrics of micro-batches, not of epochs."""
_PAIRS = (("to_delayed", "delayed"), ("to_end_to_end", "end-to-end"))


def run_charts(run: RecordedRun) -> list[Chart]:
    """Return the charts of one run: its means over epochs, and its micro-batches."""
    one = [RunGroup(name="", runs=[run])]
    charts = [_over_epochs(name, [*_parts(one, name)], is_share(name, run.scales)) for name in _metrics([run])]
    return _leave_out_empty([*charts, *(_over_steps(run, name) for name in STEPS), _throughput(one)])


def comparison_charts(groups: Sequence[RunGroup]) -> list[Chart]:
    """Return the charts of several groups: one for each metric of training and of the evaluations after epochs."""
    validated = any(
        metric.startswith("validation/") for group in groups for run in group.runs for metric in run.metrics
    )
    evaluated = "validation" if validated else "test"
    scales = {label: scale for group in groups for label, scale in group.scales.items()}
    charts = [
        _over_epochs(f"{part} {name}", _lines(groups, f"{part}/{name}"), is_share(name, scales))
        for name in _metrics(run for group in groups for run in group.runs)
        for part in (evaluated, "train")
    ]
    rates = _over_epochs("learning rate", _lines(groups, "learning_rate"), share=False)
    return _leave_out_empty([*charts, rates, _throughput(groups)])


def probe_charts(run: RecordedRun) -> list[Chart]:
    """Return the charts of a run's probe: means over the stages in training, and the stages in the latest epoch."""
    found: dict[str, dict[int, Sequence[Point]]] = {}
    for metric, points in run.metrics.items():
        if (probed := quantity_and_stage(metric)) is not None:
            found.setdefault(probed[0], {})[probed[1]] = points
    kinds = [
        ("cosine to other gradients", [(f"cosine_{key}", name) for key, name in _PAIRS]),
        ("norm ratio to other gradients", [(f"ratio_{key}", name) for key, name in _PAIRS]),
        ("relative error of reconstructed inputs", [("reconstruction_error", "")]),
    ]
    charts = []
    for title, quantities in kinds:
        held = [(name, found[quantity]) for quantity, name in quantities if quantity in found]
        over_time = [_over_stages(name, stages, style) for style, (name, stages) in enumerate(held)]
        by_stage = [_latest(name, stages, style) for style, (name, stages) in enumerate(held)]
        note = "mean over stages; band: least to largest"
        decades = _decades(title)
        charts.append(Chart(title=title, lines=over_time, x_name="epoch", note=note, logarithmic_from=decades))
        note = "each stage's mean over the latest epoch"
        charts.append(Chart(title=f"{title}, by stage", lines=by_stage, x_name="stage", ends=False, note=note))
    return _leave_out_empty(charts)


def by_epoch(points: Iterable[Point]) -> Mapping[int, float]:
    """Return the latest value of each epoch."""
    return {point.epoch: point.value for point in points}


def mean_over_runs(runs: Sequence[RecordedRun], metric: str) -> list[tuple[int, list[float]]]:
    """Return a metric's values of all runs that have it, epoch by epoch, as far as all of them came."""
    held = [by_epoch(run.metrics[metric]) for run in runs if run.metrics.get(metric)]
    common = set.intersection(*(set(values) for values in held)) if held else set()
    return [(epoch, [values[epoch] for values in held]) for epoch in sorted(common)]


def _metrics(runs: Iterable[RecordedRun]) -> list[str]:
    """Return the metrics of the head, the loss first."""
    names = (metric.partition("/") for run in runs for metric in run.metrics)
    seen = dict.fromkeys(name for part, _, name in names if part in _SPLITS and f"train/{name}" not in STEPS)
    return sorted(seen, key=lambda name: name != "loss")


def _parts(groups: Sequence[RunGroup], name: str) -> Iterator[Line]:
    """Yield a run's metric over each split."""
    for style, part in enumerate(_SPLITS):
        for line in _lines(groups, f"{part}/{name}"):
            yield Line(name=part, points=line.points, style=style)


def _lines(groups: Sequence[RunGroup], metric: str) -> list[Line]:
    lines = []
    for style, group in enumerate(groups):
        values = mean_over_runs(group.by_seed, metric)
        lines.append(_line(group.name, values, style, banded=any(len(each) > 1 for _, each in values)))
    return lines


def _line(name: str, values: Sequence[tuple[int, Sequence[float]]], style: int, *, banded: bool) -> Line:
    """Return the means of several values at each place, in a band from the least to the largest."""
    band = [(at, min(each), max(each)) for at, each in values] if banded else []
    return Line(name=name, points=[(at, fmean(each)) for at, each in values], band=band, style=style)


def _decades(title: str) -> float:
    return _DECADES if title.endswith("loss") or "error" in title else math.inf


def _over_epochs(title: str, lines: Sequence[Line], share: bool) -> Chart:
    return Chart(title=title, lines=lines, x_name="epoch", shares=share, logarithmic_from=_decades(title))


def _over_steps(run: RecordedRun, metric: str) -> Chart:
    points = [(point.step, point.value) for point in run.metrics.get(metric, ())]
    if not points and metric == "train/learning_rate":
        points = [(point.step, point.value) for point in run.metrics.get("learning_rate", ())]
    drawn, band = thin_out(points)
    note = f"means of {-(-len(points) // _MOST_POINTS)} records; band: least to largest" if band else ""
    title = metric.partition("/")[2].replace("_", " ").replace("micro batch", "micro-batch")
    lines = [Line(name="", points=drawn, band=band)]
    return Chart(title=title, lines=lines, x_name="micro-batch", note=note, logarithmic_from=_decades(title))


def thin_out(points: Values, most: int = _MOST_POINTS) -> tuple[Values, Sequence[tuple[float, float, float]]]:
    """Return at most this number of points, each the mean of consecutive ones, and the band from their least to their largest."""
    if len(points) <= most:
        return points, ()
    size = math.ceil(len(points) / most)
    groups = [points[at : at + size] for at in range(0, len(points), size)]
    ys = [[y for _, y in group] for group in groups]
    ends = [group[-1][0] for group in groups]
    means = [(x, fmean(each)) for x, each in zip(ends, ys, strict=True)]
    return means, [(x, min(each), max(each)) for x, each in zip(ends, ys, strict=True)]


def _throughput(groups: Sequence[RunGroup]) -> Chart:
    lines = _lines(groups, "samples_per_second")
    note = "samples a second, evaluations left out"
    return Chart(title="throughput", lines=lines, x_name="epoch", from_zero=True, note=note)


def _over_stages(name: str, stages: Mapping[int, Sequence[Point]], style: int) -> Line:
    """Return the mean over the stages, epoch by epoch."""
    means = [_epoch_means(points) for points in stages.values()]
    epochs = sorted({epoch for of_stage in means for epoch in of_stage})
    return _line(name, [(at, [each[at] for each in means if at in each]) for at in epochs], style, banded=True)


def _latest(name: str, stages: Mapping[int, Sequence[Point]], style: int) -> Line:
    means = {stage: _epoch_means(points) for stage, points in sorted(stages.items())}
    epoch = max(max(of_stage) for of_stage in means.values())
    points: Values = [(stage, of_stage[epoch]) for stage, of_stage in means.items() if epoch in of_stage]
    return Line(name=name, points=points, style=style)


def _epoch_means(points: Iterable[Point]) -> Mapping[int, float]:
    by_time = sorted(points, key=lambda point: point.epoch)
    grouped = groupby(by_time, key=lambda point: point.epoch)
    return {epoch: fmean(point.value for point in each) for epoch, each in grouped}


def _leave_out_empty(charts: Iterable[Chart]) -> list[Chart]:
    """Return the charts that have at least one point."""
    return [chart for chart in charts if any(line.points for line in chart.lines)]
