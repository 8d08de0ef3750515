"""Runs as a page: one run, or several as groups that repeat one another except for their seed, over one another and in tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import asdict

from petra_graph.errors import Problem, SpecError
from petra_graph.record.recorded_run import RecordedRun, find_run, is_run, read_run, run_directories
from petra_graph.record.run_directory import write_output
from petra_graph.report.metric_text import FIRST, chosen_on, final_metrics, value_text
from petra_graph.report.pages.page import Section, render_page
from petra_graph.report.pages.run_page import curves, run_page
from petra_graph.report.plan_tables import schedule_label
from petra_graph.report.planned_and_measured import compare_with_plan
from petra_graph.report.run_groups import (
    RunGroup,
    Spread,
    differences,
    group_columns,
    group_runs,
    record_of,
    short_key,
    spread_texts,
)
from petra_graph.report.tables import Column, name_column, value_column
from petra_graph.units import PLAIN, listed, memory, plural

FILE = "report.html"
_SPREAD = (
    "The best is first. A value is the mean ± standard deviation over a group's seeds. Of several runs with one seed the longest counts, and of these "
    "the latest. Final values are those of the latest evaluation."
)
_BAND = "A line is the mean over a group's runs, as far as all of them came; its band reaches from the least to the largest."
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
    measured = [record_of(run.directory, run) | {"measured": run.summary.get("measured")} for run in runs]
    groups = group_runs(runs)
    return {"output": str(path), "runs": measured, "groups": list(map(_record, groups)), "differing": differing(groups)}


def differing(groups: Sequence[RunGroup]) -> dict[str, dict[str, str]]:
    """Return the keys in which groups differ, with the value of each group by its name."""
    names = [group.name for group in groups]
    return {key: dict(zip(names, row, strict=True)) for key, row in differences(groups).items()}


def _record(group: RunGroup) -> dict[str, Any]:
    finals = final_metrics(name for run in group.runs for name in run.metrics)
    return {
        "group": group.name,
        "runs": [str(run.directory) for run in group.runs],
        "best": group.best and {"metric": group.judged_by, **asdict(group.best)},
        "final": {metric: asdict(spread) for metric in finals if (spread := group.final(metric))},
    }


def runs_page(runs: Sequence[RecordedRun]) -> str:
    """Write several runs as one page: which group is the best and by how much, curves, and all runs."""
    groups = group_runs(runs)
    few = f" Only the {_MOST_CURVES} best of {len(groups)} groups." if len(groups) > _MOST_CURVES else ""
    sections = [
        Section(name="groups", note=_SPREAD, tables=[("", group_columns(groups))]),
        Section(name="curves", note=_BAND + few, pictures=curves(groups[:_MOST_CURVES])),
        Section(name="runs", tables=[("", _run_columns(groups))]),
    ]
    keys, names = listed(map(short_key, differences(groups))), ", ".join(dict.fromkeys(run.name for run in runs))
    stopped: dict[str, list[str]] = {}
    for run in runs:
        stopped.setdefault(run.status, []).append(run.directory.name)
    return render_page(
        f"{names}: {plural(len(runs), 'run')}" + (f" over {keys}" if keys else ""),
        sections,
        about=[f"{plural(len(groups), 'group')} of runs, which differ in their seed alone within a group"],
        answers=list(answers(groups)),
        state=[f"{status}: {', '.join(held)}" for status, held in sorted(stopped.items()) if status != "done"],
    )


def answers(groups: Sequence[RunGroup]) -> Iterator[tuple[str, str]]:
    """Yield which group is the best, whether the next one is worse by more than chance, and what has chosen it."""
    best, metric = groups[0], groups[0].judged_by
    if metric is None:
        return
    judged = [(group.name, group.best) for group in groups if group.judged_by == metric and group.best]
    texts = spread_texts([spread for _, spread in judged], metric, best.scales)
    yield ("best", f"{best.name}: {metric} {texts[0]} over {plural(judged[0][1].n, 'seed')}")
    if len(judged) > 1:
        yield ("next", f"{judged[1][0]}: {metric} {texts[1]}; {_apart(judged[0][1], judged[1][1])}")
    tested = next((name for name in FIRST if name.startswith("test/") and best.final(name)), None)
    if tested and not metric.startswith("test/"):
        text = spread_texts([best.final(tested)], tested, best.scales)[0]
        weights = {(run.summary.get("test_weights") or {}).get("weights", "last") for run in best.runs}
        yield ("its test", f"{tested} {text}, with the {listed(sorted(weights))} weights of each run")
    which = "smallest" if best.judged_by_smallest else "largest"
    yield ("judged by", f"{metric}: the {which} value of each run's evaluations; {chosen_on(metric)}")


def _apart(best: Spread, other: Spread) -> str:
    """Say whether two means are further apart than their seeds are."""
    deviations = [each.standard_deviation for each in (best, other) if each.standard_deviation is not None]
    if not deviations:
        return "a single seed does not say whether that is more than chance"
    if abs(best.mean - other.mean) > max(deviations):
        return f"further apart than a standard deviation over {plural(max(best.n, other.n), 'seed')}"
    return "less apart than a standard deviation over the seeds: it may be chance"


def _run_columns(groups: Sequence[RunGroup]) -> list[Column]:
    held = [(group.name, run) for group in groups for run in group.runs]
    runs = [run for _, run in held]
    processes = [(run.summary.get("measured") or {}).get("processes", ()) for run in runs]
    sizes = [[one["bytes"]["measured"] for one in compare_with_plan(None, 0, each)["processes"]] for each in processes]
    bests = [
        run.best and f"{run.best.metric} {value_text(run.best.metric, run.best.value, run.scales)}" for run in runs
    ]
    return [
        name_column("group", [name for name, _ in held]),
        name_column("run", [run.directory.name for run in runs]),
        name_column("method", [run.resolved["method"]["name"] for run in runs]),
        name_column("schedule", [schedule_label(run.resolved["method"]["schedule"]) for run in runs]),
        value_column("seed", [run.seed for run in runs]),
        name_column("status", [run.status for run in runs]),
        value_column("epochs", [f"{run.epochs}/{run.planned_epochs}" for run in runs]),
        value_column("best", bests),
        value_column("samples\na second", [run.rate for run in runs], PLAIN.text),
        value_column("memory\nmeasured", [sum(each) if each else None for each in sizes], memory),
    ]
