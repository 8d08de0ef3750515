"""Runs as a page: one run, or several as groups that repeat one another except for their seed, over one another and in tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from petra_graph.errors import Problem, SpecError
from petra_graph.record.recorded_run import RecordedRun, find_run, is_run, read_run, run_directories
from petra_graph.record.run_directory import write_output
from petra_graph.report.metric_text import EVALUATED, FIRST, chosen_on, final_metrics, value_text
from petra_graph.report.pages.page import Section, render_page
from petra_graph.report.pages.run_page import comparison_charts, run_page
from petra_graph.report.plan_tables import schedule_label
from petra_graph.report.run_groups import (
    RunGroup,
    Spread,
    best_spread,
    differences,
    final_spread,
    group_runs,
    short_key,
    spread_texts,
)
from petra_graph.report.tables import Column, name_column, value_column
from petra_graph.units import PLAIN, listed, plural

FILE = "report.html"
_SPREAD = (
    "The best is first. A value is the mean ± standard deviation over a group's seeds. Of several runs with one seed the longest counts, and of these "
    "the latest. Final values are those of the latest evaluation."
)
_BAND = "A line is the mean over a group's runs, as far as all of them came; its band reaches from the least to the largest."
_FEW_SEEDS = 2
"""Of two groups, with which a third of pairs that are alike are further apart than their deviation."""
_MOST_CURVES = 8
"""Groups whose curves are drawn over one another: the best ones."""


def report_runs(names: Sequence[str], output: Path | None = None) -> dict[str, Any]:
    """Write the page of some runs.

    Args:
        names: their directories, or "latest", or folders of runs; at least one. A run that is named twice counts once.
        output: the file; None: report.html in the directory of the run, or of several runs in the current folder.

    Returns:
        the file's path, and the runs' figures.

    Raises:
        SpecError: one is not a run's directory, or is damaged; the error has all problems. Or what draws is not installed.
        RunFailed: the file cannot be written.
    """
    found = [
        path
        for name in map(find_run, names)
        for path in ([name] if is_run(name) or not name.is_dir() else run_directories(name))
    ]
    runs, problems = list[RecordedRun](), list[Problem]()
    for directory in {path.resolve(): path for path in found}.values():
        try:
            runs.append(read_run(directory))
        except SpecError as error:
            problems += error.problems
    if problems:
        raise SpecError(problems)
    alone = runs[0] if len(runs) == 1 else None
    path = output or (Path(FILE) if alone is None else alone.directory / FILE)
    write_output(path, runs_page(runs) if alone is None else run_page(alone))
    record: dict[str, Any] = {"output": str(path), "runs": [_record(run) for run in runs]}
    return record if alone is not None else record | _record_of_groups(group_runs(runs))


def runs_page(runs: Sequence[RecordedRun]) -> str:
    """Write several runs as one page: which group is the best and by how much, the metric against what differs, curves, and all runs."""
    groups = group_runs(runs)
    differing = differences(groups)
    few = f" Only the {_MOST_CURVES} best of {len(groups)} groups." if len(groups) > _MOST_CURVES else ""
    sections = [
        Section(
            name="groups",
            note=_SPREAD,
            tables=[("", _group_columns(groups))],
        ),
        Section(name="curves", note=_BAND + few, pictures=comparison_charts(groups[:_MOST_CURVES])),
        Section(name="runs", tables=[("", _run_columns(groups))]),
    ]
    keys = listed(short_key(key) for key in differing)
    names = ", ".join(dict.fromkeys(run.name for run in runs))
    stopped = {
        status: [run.directory.name for run in runs if run.status == status] for status in {run.status for run in runs}
    }
    return render_page(
        f"{names}: {plural(len(runs), 'run')}" + (f" over {keys}" if keys else ""),
        sections,
        about=[f"{plural(len(groups), 'group')} of runs, which differ in their seed alone within a group"],
        answers=list(_answers(groups)),
        state=[f"{status}: {', '.join(held)}" for status, held in sorted(stopped.items()) if status != "done"],
    )


def _answers(groups: Sequence[RunGroup]) -> Iterator[tuple[str, str]]:
    """Yield which group is the best, whether the next one is worse by more than chance, and what has chosen it."""
    first = best_spread(groups[0])
    if first is None:
        return
    metric, best = first[0], groups[0]
    judged = [(group, found[1]) for group in groups if (found := best_spread(group)) and found[0] == metric]
    texts = spread_texts([each for _, each in judged], metric, best.scales)
    yield ("best", f"{best.name}: {metric} {texts[0]} over {plural(judged[0][1].n, 'seed')}")
    if len(judged) > 1:
        yield ("next", f"{judged[1][0].name}: {metric} {texts[1]}; {_apart(judged[0][1], judged[1][1])}")
    tested = next((name for name in FIRST if name.startswith("test/") and final_spread(best, name)), None)
    if tested and not metric.startswith("test/"):
        text = spread_texts([final_spread(best, tested)], tested, best.scales)[0]
        weights = {(run.summary.get("test_weights") or {}).get("weights", "last") for run in best.runs}
        yield ("its test", f"{tested} {text}, with the {listed(sorted(weights))} weights of each run")
    which = "smallest" if best.bests[0].smallest else "largest"
    yield ("judged by", f"{metric}: the {which} value of each run's evaluations; {chosen_on(metric)}")


def _apart(best: Spread, other: Spread) -> str:
    """Say whether two means are further apart than their seeds are."""
    deviations = [each.standard_deviation for each in (best, other) if each.standard_deviation is not None]
    if not deviations:
        return "a single seed does not say whether that is more than chance"
    if abs(best.mean - other.mean) > max(deviations):
        few = "" if min(best.n, other.n) > _FEW_SEEDS else ", of which two are too few to rule out chance"
        return f"further apart than a standard deviation over the seeds{few}"
    return "less apart than a standard deviation over the seeds: it may be chance"


def _group_columns(groups: Sequence[RunGroup]) -> list[Column]:
    """Return the groups, the best first, with the metric that judges them, and their final metrics."""
    scales = {label: scale for group in groups for label, scale in group.scales.items()}
    found = [best_spread(group) for group in groups]
    metric = next((each[0] for each in found if each), "")
    bests = [each[1] if each and each[0] == metric else None for each in found]
    finals = final_metrics(name for group in groups for run in group.runs for name in run.metrics)
    rates = [[run.rate for run in group.runs if run.rate] for group in groups]
    styles = ["bold green" if place == 0 and bests[0] and len(groups) > 1 else "" for place in range(len(groups))]
    return [
        name_column("group", [group.name for group in groups], styles=styles),
        value_column(f"best\n{metric}", spread_texts(bests, metric, scales)),
        value_column("runs", [len(group.runs) for group in groups]),
        *(
            value_column(f"final\n{name}", spread_texts([final_spread(group, name) for group in groups], name, scales))
            for name in finals
        ),
        value_column("samples\na second", spread_texts([Spread.of(each) if each else None for each in rates], "")),
    ]


def _run_columns(groups: Sequence[RunGroup]) -> list[Column]:
    held = [(group.name, run) for group in groups for run in group.runs]
    methods = [run.resolved["method"] for _, run in held]
    bests = [(run.best, run.scales) for _, run in held]
    return [
        name_column("group", [name for name, _ in held]),
        name_column("run", [run.directory.name for _, run in held]),
        name_column("method", [method["name"] for method in methods]),
        name_column("schedule", [schedule_label(method["schedule"]) for method in methods]),
        value_column("seed", [run.seed for _, run in held]),
        name_column("status", [run.status for _, run in held]),
        value_column("epochs", [f"{run.epochs}/{run.planned_epochs}" for _, run in held]),
        value_column(
            "best", [best and f"{best.metric} {value_text(best.metric, best.value, scales)}" for best, scales in bests]
        ),
        value_column("samples\na second", [run.rate for _, run in held], PLAIN.text),
    ]


def _record(run: RecordedRun) -> dict[str, Any]:
    best = run.best
    return {
        "directory": str(run.directory),
        "name": run.name,
        "status": run.status,
        "seed": run.seed,
        "epochs": run.epochs,
        "best": best and attrs.asdict(best, filter=attrs.filters.exclude("smallest")),
        "final": {
            name: points[-1].value for name, points in run.metrics.items() if name.startswith(("train/", *EVALUATED))
        },
        "samples_per_second": run.summary.get("samples_per_second"),
        "measured": run.summary.get("measured"),
    }


def _record_of_groups(groups: Sequence[RunGroup]) -> dict[str, Any]:
    """Return the comparison as JSON."""
    rows = []
    for group in groups:
        best = best_spread(group)
        finals = final_metrics(name for run in group.runs for name in run.metrics)
        spreads = {metric: spread for metric in finals if (spread := final_spread(group, metric))}
        rows.append(
            {
                "group": group.name,
                "runs": [str(run.directory) for run in group.runs],
                "best": best and {"metric": best[0], **attrs.asdict(best[1])},
                "final": {metric: attrs.asdict(spread) for metric, spread in spreads.items()},
            }
        )
    names = [group.name for group in groups]
    return {
        "groups": rows,
        "differing": {key: dict(zip(names, row, strict=True)) for key, row in differences(groups).items()},
    }
