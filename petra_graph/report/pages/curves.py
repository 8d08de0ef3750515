"""The charts of runs: what their events hold, metric by metric.

Several runs of a group, which differ in their seed alone, are one line: the mean, with a band from the least to the largest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from statistics import fmean

from petra_graph.record.recorded_run import Point, RecordedRun, quantity_and_stage
from petra_graph.report.metric_text import is_share
from petra_graph.report.pages.page import Line, Picture, line_chart
from petra_graph.report.run_groups import RunGroup

_MOST_POINTS = 300
_SPLITS = ("train", "test", "validation")
_OF_STEPS = ("train/micro_batch_loss", "train/learning_rate")
"""Metrics of micro-batches, not of epochs."""
_PAIRS = (("to_delayed", "delayed"), ("to_end_to_end", "end-to-end"))


def run_charts(run: RecordedRun) -> list[Picture]:
    """Return the charts of one run: its means over epochs, and its micro-batches."""
    found: list[Picture] = []
    for name in _metrics([run]):
        lines = [Line(name=part, points=_means([run], f"{part}/{name}")[0]) for part in _SPLITS]
        shares = is_share(name, run.scales)
        found += line_chart(name, lines, "epoch", shares=shares, logarithmic=name.endswith("loss"))
    for metric, title in zip(_OF_STEPS, ("micro-batch loss", "learning rate"), strict=True):
        points, band = thin_out([(point.step, point.value) for point in run.metrics.get(metric, ())])
        note = "means; band: least to largest" if band else ""
        lines = [Line(name="", points=points, band=band)]
        found += line_chart(title, lines, "micro-batch", note=note, logarithmic="loss" in title, last=False)
    return [*found, *_throughput([RunGroup(name="", runs=[run])])]


def comparison_charts(groups: Sequence[RunGroup]) -> list[Picture]:
    """Return the charts of several groups: one for each metric of training and of the evaluations after epochs."""
    runs = [run for group in groups for run in group.runs]
    evaluated = "validation" if any(name.startswith("validation/") for run in runs for name in run.metrics) else "test"
    scales = {label: scale for run in runs for label, scale in run.scales.items()}
    found: list[Picture] = []
    for name in _metrics(runs):
        for part in (evaluated, "train"):
            lines = [_line_of(group, f"{part}/{name}") for group in groups]
            shares, logarithmic = is_share(name, scales), name.endswith("loss")
            found += line_chart(f"{part} {name}", lines, "epoch", shares=shares, logarithmic=logarithmic)
    return [*found, *_throughput(groups)]


def probe_charts(run: RecordedRun) -> list[Picture]:
    """Return the charts of a run's probe: means over the stages in training, and the stages in the latest epoch."""
    found: dict[str, dict[int, Sequence[Point]]] = {}
    for metric, points in run.metrics.items():
        if (probed := quantity_and_stage(metric)) is not None:
            found.setdefault(probed[0], {})[probed[1]] = points
    charts: list[Picture] = []
    for title, quantities in (
        ("cosine to other gradients", [(f"cosine_{key}", name) for key, name in _PAIRS]),
        ("norm ratio to other gradients", [(f"ratio_{key}", name) for key, name in _PAIRS]),
        ("relative error of reconstructed inputs", [("reconstruction_error", "")]),
    ):
        held = [
            (name, {stage: _epoch_means(points) for stage, points in sorted(found[quantity].items())})
            for quantity, name in quantities
            if quantity in found
        ]
        over_time, by_stage = [], []
        for name, stages in held:
            epochs = sorted({epoch for means in stages.values() for epoch in means})
            values = [(epoch, [means[epoch] for means in stages.values() if epoch in means]) for epoch in epochs]
            over_time.append(_line(name, values, banded=True))
            latest = [(stage, means[epochs[-1]]) for stage, means in stages.items() if epochs[-1] in means]
            by_stage.append(Line(name=name, points=latest))
        note, logarithmic = "mean over stages; band: least to largest", "error" in title
        charts += line_chart(title, over_time, "epoch", note=note, logarithmic=logarithmic)
        charts += line_chart(f"{title}, by stage", by_stage, "stage", note="in the latest epoch", last=False)
    return charts


def _metrics(runs: Iterable[RecordedRun]) -> list[str]:
    """Return the metrics of the head, the loss first."""
    names = (metric.partition("/") for run in runs for metric in run.metrics)
    seen = dict.fromkeys(name for part, _, name in names if part in _SPLITS and f"train/{name}" not in _OF_STEPS)
    return sorted(seen, key=lambda name: name != "loss")


def _means(
    runs: Sequence[RecordedRun], metric: str
) -> tuple[list[tuple[float, float]], list[tuple[float, float, float]]]:
    """Return a metric's means over the runs that have it, epoch by epoch, as far as all of them came, and the band of several runs."""
    held = [{point.epoch: point.value for point in run.metrics[metric]} for run in runs if run.metrics.get(metric)]
    common = sorted(set.intersection(*(set(values) for values in held))) if held else []
    line = _line("", [(epoch, [values[epoch] for values in held]) for epoch in common], banded=len(held) > 1)
    return list(line.points), list(line.band)


def _line(name: str, values: Sequence[tuple[int, Sequence[float]]], *, banded: bool) -> Line:
    """Return the means of several values at each place, in a band from the least to the largest."""
    band = [(at, min(each), max(each)) for at, each in values] if banded else []
    return Line(name=name, points=[(at, fmean(each)) for at, each in values], band=band)


def _line_of(group: RunGroup, metric: str) -> Line:
    points, band = _means(group.by_seed, metric)
    return Line(name=group.name, points=points, band=band)


def _throughput(groups: Sequence[RunGroup]) -> list[Picture]:
    lines = [_line_of(group, "samples_per_second") for group in groups]
    return line_chart("throughput", lines, "epoch", note="samples a second, evaluations left out", from_zero=True)


def thin_out(
    points: Sequence[tuple[float, float]], most: int = _MOST_POINTS
) -> tuple[Sequence[tuple[float, float]], Sequence[tuple[float, float, float]]]:
    """Return at most this number of points, each the mean of consecutive ones, and the band from their least to their largest."""
    if len(points) <= most:
        return points, ()
    size = math.ceil(len(points) / most)
    groups = [points[at : at + size] for at in range(0, len(points), size)]
    ends = [(group[-1][0], [y for _, y in group]) for group in groups]
    return [(x, fmean(ys)) for x, ys in ends], [(x, min(ys), max(ys)) for x, ys in ends]


def _epoch_means(points: Iterable[Point]) -> Mapping[int, float]:
    grouped = groupby(sorted(points, key=lambda point: point.epoch), key=lambda point: point.epoch)
    return {epoch: fmean(point.value for point in each) for epoch, each in grouped}
