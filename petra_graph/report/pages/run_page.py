"""The page of one run: its state, curves, stages, memory, timeline, what callbacks record by stage, and how it was made.

Several runs of a group, which differ in their seed alone, are one line of a curve: the mean, with a band from the least to the largest.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import Any

from attrs import evolve

from petra_graph.compiler.plan import Plan, read_plan, read_values
from petra_graph.compiler.timing import Event
from petra_graph.errors import SpecError
from petra_graph.record.checkpoint import numbers
from petra_graph.record.recorded_run import RecordedRun, began
from petra_graph.record.run_directory import PLAN, TIMELINE, read_json
from petra_graph.report.metric_text import EVALUATED, chosen_on, final_metrics, is_share, value_text
from petra_graph.report.pages.page import Line, Picture, Section, line_chart, render_page
from petra_graph.report.pages.plan_page import memory_bars, timeline_of
from petra_graph.report.plan_tables import nodes_label, schedule_label, title_lines
from petra_graph.report.planned_and_measured import (
    compare_with_plan,
    process_columns,
    stage_columns,
    what_the_plan_said,
)
from petra_graph.report.run_groups import RunGroup
from petra_graph.report.tables import Column, name_column, value_column
from petra_graph.units import PLAIN, duration, memory, number, plural

Points = Sequence[tuple[float, float]]
Band = Sequence[tuple[float, float, float]]
_LONGEST_TRACE = 6_000
"""Characters of a traceback's end that are shown."""
_MEASURED = (
    "Measured are the host's seconds for one operation, in the mean since the latest start: computing, but also reading samples, sending messages, "
    "recording, and copying state for checkpoints. Stages on CUDA devices are left out, since there the host only queues work. The memory of a process is "
    "its growth since just before its stages were built; on CUDA devices, what torch's allocator has handed out."
)
_MOST_POINTS = 300
_epoch = attrgetter("epoch")
_SPLITS = ("train", "test", "validation")
_OF_STEPS = {"train/micro_batch_loss": "micro-batch loss", "train/learning_rate": "learning rate"}
"""Metrics of micro-batches, not of epochs, with the titles of their charts."""


def run_page(run: RecordedRun) -> str:
    """Write a run as a page.

    Raises:
        SpecError: a file of the run is damaged, or what draws is not installed.
    """
    with _reading(str(run.directory)):
        plan, processes = _plan_of(run.directory), (run.summary.get("measured") or {}).get("processes", ())
        found = compare_with_plan(plan, len(run.resolved["partition"]["stages"]), processes)
        tables = [("stages", _stage_columns(run, plan, stage_columns(found)))]
        if processes:
            tables.append(("memory of processes", process_columns(found)))
        sections = [
            Section(name="curves", pictures=[*curves([RunGroup(name="", runs=[run])]), *_charts_of_steps(run)]),
            Section(
                name="stages",
                note=_MEASURED if processes else "Seconds and memory are measured where a run ends.",
                tables=tables,
                pictures=memory_bars(plan) if plan else (),
            ),
            Section(
                name="timeline",
                note="Some ticks of the plan, once every stage works; simulated, not measured.",
                pictures=timeline_of(plan, plan.timeline) if plan else (),
            ),
            Section(
                name="callbacks",
                note="What callbacks record by stage: means over the stages; band: least to largest.",
                pictures=stage_charts(run),
            ),
            Section(
                name="run",
                lines=[f"{name}: {value}" for name, value in _facts(run)],
                texts=[("resolved.toml", (run.directory / "resolved.toml").read_text(encoding="utf-8"))],
            ),
        ]
        return render_page(
            f"{run.name}: run",
            sections,
            about=[str(run.directory), _about(run), *(title_lines(plan)[:1] if plan else [])],
            answers=list(_figures(run)),
            state=list(_state(run)),
            warnings=plan.warnings if plan else (),
        )


@contextmanager
def _reading(source: str) -> Iterator[None]:
    """Refuse the files of a run as damaged where a view finds no key, or a value of another type."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise SpecError(
            f"{source} is damaged: {type(error).__name__}: {error}", "restore it, or make it again"
        ) from error


def _plan_of(directory: Path) -> Plan | None:
    """Return the plan of a run, with the ticks of its timeline that were kept; None where it was not planned.

    Raises:
        SpecError: it is damaged.
    """
    path, ticks = directory / PLAN, directory / TIMELINE
    if not path.exists():
        return None
    events = read_values(read_json(ticks, list) or [], tuple[Event, ...], str(ticks))
    return evolve(read_plan(path.read_bytes(), str(path)), timeline=events)


def _about(run: RecordedRun) -> str:
    method, data = run.resolved["method"], run.resolved["data"]
    stages = plural(len(run.resolved["partition"]["stages"]), "stage")
    return (
        f"{method['name']}, schedule {schedule_label(method['schedule'])}, accumulation {method['accumulation']}, "
        f"micro-batch {data['batch']} of the data {data['name']}: {stages}"
    )


def _state(run: RecordedRun) -> Iterator[str]:
    """Yield what a reader must know of a run that is not done."""
    said = {
        "running": "is under way",
        "killed": "ended without a summary, as its process was killed or the machine stopped",
        "interrupted": "was interrupted",
        "failed": "failed",
    }
    if run.status not in said:
        return
    yield f"The run {said[run.status]}: {run.epochs} of {plural(run.planned_epochs, 'epoch')} recorded."
    if run.status == "failed":
        yield from run.summary.get("error", [])
        if (path := run.directory / "failure.txt").is_file():
            yield path.read_text(encoding="utf-8", errors="replace")[-_LONGEST_TRACE:]
    if run.status != "running" and numbers(run.directory):
        resume = f"petra-graph run --resume {shlex.quote(str(run.directory))}"
        yield f"It continues from its latest checkpoint with: {resume}"


def _figures(run: RecordedRun) -> Iterator[tuple[str, str]]:
    summary, best = run.summary, run.best
    yield ("status", f"{run.status}, {run.epochs} of {plural(run.planned_epochs, 'epoch')}")
    if best is not None:
        value = value_text(best.metric, best.value, run.scales)
        yield (f"best {best.metric}", f"{value}, after epoch {best.epoch}; {chosen_on(best.metric)}")
    tested, word = summary.get("test_weights"), "final" if run.status == "done" else "latest"
    for metric in final_metrics(name for name in run.metrics if name.startswith(EVALUATED)):
        latest = run.metrics[metric][-1]
        note = f"after epoch {latest.epoch}"
        if tested and metric.startswith("test/"):
            note = f"{tested['weights']} weights, of epoch {tested['epoch']}"
        if best is None or (metric, latest.epoch) != (best.metric, best.epoch):
            yield (f"{word} {metric}", f"{value_text(metric, latest.value, run.scales)}, {note}")
    if rate := run.rate:
        yield ("samples a second", "; ".join(filter(None, [PLAIN.text(rate), what_the_plan_said(summary)])))
    if spent := summary.get("seconds"):
        yield ("training", f"{duration(spent['training'])} of {duration(spent['total'])} in all")


def _stage_columns(run: RecordedRun, plan: Plan | None, timed: list[Column]) -> list[Column]:
    columns = [timed[0], name_column("nodes", map(nodes_label, run.resolved["partition"]["stages"]), 40)]
    if plan:
        stages = plan.stages
        columns += [
            name_column("device", (stage.device for stage in stages), 40),
            value_column("depth", [stage.depth for stage in stages]),
            value_column("stale\nupdates", [stage.staleness for stage in stages], number),
            value_column("memory\nplanned", [stage.bytes.total for stage in stages], memory),
        ]
    return columns + timed[1:]


def _facts(run: RecordedRun) -> Iterator[tuple[str, str]]:
    """Yield how the run began, where it was resumed and with what changes, what it left, and where it ran."""
    summary, environment = run.summary, read_json(run.directory / "env.json", dict) or {}
    yield ("began", f"{began(run.directory):%Y-%m-%d %H:%M:%S} UTC")
    yield ("seed", str(run.seed))
    if weights := run.resolved.get("init", {}).get("weights"):
        yield ("weights at the start", str(weights))
    if resumed := summary.get("resumed_from"):
        yield ("resumed before micro-batch", ", ".join(f"{at:,}" for at in resumed))
    for one in summary.get("changed", ()):
        yield ("changed", str(one))
    yield ("checkpoints before micro-batch", ", ".join(f"{at:,}" for at in sorted(numbers(run.directory))) or "none")
    for key in ("micro_batches", "updates", "processes"):
        if key in summary:
            yield (key.replace("_", "-"), f"{summary[key]:,}")
    for reason in (summary.get("predicted") or {}).get("not planned", ()):
        yield ("not planned", str(reason))
    for key, value in environment.items():
        if value:
            yield (key.replace("_", " "), shlex.join(value) if key == "command" else _text(value))


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {one}" for key, one in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def curves(groups: Sequence[RunGroup]) -> list[Picture]:
    """Return a chart for each metric of training and of the evaluations after epochs, and one of the throughput.

    Of a single run, a chart has all splits; of several, that of a split has their groups.
    """
    runs = [run for group in groups for run in group.runs]
    names = (metric.partition("/") for run in runs for metric in run.metrics)
    seen = dict.fromkeys(name for part, _, name in names if part in _SPLITS and f"train/{name}" not in _OF_STEPS)
    scales = {label: scale for run in runs for label, scale in run.scales.items()}
    evaluated = "validation" if any(name.startswith("validation/") for run in runs for name in run.metrics) else "test"
    found: list[Picture] = []
    for name in sorted(seen, key=lambda name: name != "loss"):
        charts = {name: [_line_of(groups[0], f"{part}/{name}", part) for part in _SPLITS]}
        if len(runs) > 1:
            charts = {
                f"{part} {name}": [_line_of(group, f"{part}/{name}", group.name) for group in groups]
                for part in (evaluated, "train")
            }
        look: dict[str, Any] = {"shares": is_share(name, scales), "logarithmic": name.endswith("loss")}
        found += [one for title, lines in charts.items() for one in line_chart(title, lines, "epoch", **look)]
    rates = [_line_of(group, "samples_per_second", group.name) for group in groups]
    note = "samples a second, evaluations left out"
    return [*found, *line_chart("throughput", rates, "epoch", note=note, from_zero=True)]


def _charts_of_steps(run: RecordedRun) -> list[Picture]:
    found: list[Picture] = []
    for metric, title in _OF_STEPS.items():
        points, band = thin_out([(point.step, point.value) for point in run.metrics.get(metric, ())])
        note, lines = "means; band: least to largest" if band else "", [Line(name="", points=points, band=band)]
        found += line_chart(title, lines, "micro-batch", note=note, logarithmic="loss" in title)
    return found


def stage_charts(run: RecordedRun) -> list[Picture]:
    """Return a chart for each metric that callbacks record by stage, as probe/cosine_to_delayed/stage-03: the mean over the stages."""
    found: dict[str, dict[int, list[float]]] = {}
    for metric, points in run.metrics.items():
        name, _, stage = metric.rpartition("/stage-")
        if name and stage.isdecimal():
            for epoch, each in groupby(sorted(points, key=_epoch), key=_epoch):
                found.setdefault(name, {}).setdefault(epoch, []).append(fmean(point.value for point in each))
    lines = {name: _mean_line("", values, banded=True) for name, values in sorted(found.items())}
    return [one for name, line in lines.items() for one in line_chart(name, [line], "epoch")]


def _line_of(group: RunGroup, metric: str, name: str) -> Line:
    """Return a metric's means over the runs that have it, epoch by epoch, as far as all of them came, and the band of several runs."""
    held = [{point.epoch: point.value for point in run.metrics.get(metric, ())} for run in group.by_seed]
    of_runs = [values for values in held if values]
    common = sorted(set.intersection(*map(set, of_runs))) if of_runs else []
    return _mean_line(name, {epoch: [values[epoch] for values in of_runs] for epoch in common}, banded=len(of_runs) > 1)


def _mean_line(name: str, values: Mapping[int, Sequence[float]], *, banded: bool) -> Line:
    """Return the means of several values at each place, in a band from the least to the largest."""
    places = sorted(values.items())
    band = [(at, min(each), max(each)) for at, each in places] if banded else []
    return Line(name=name, points=[(at, fmean(each)) for at, each in places], band=band)


def thin_out(points: Points, most: int = _MOST_POINTS) -> tuple[Points, Band]:
    """Return at most this number of points, each the mean of consecutive ones, and the band from their least to their largest."""
    if len(points) <= most:
        return points, ()
    size = math.ceil(len(points) / most)
    groups = [points[at : at + size] for at in range(0, len(points), size)]
    ends = [(group[-1][0], [y for _, y in group]) for group in groups]
    return [(x, fmean(ys)) for x, ys in ends], [(x, min(ys), max(ys)) for x, ys in ends]
