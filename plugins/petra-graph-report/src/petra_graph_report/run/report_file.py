"""Runs to one HTML file: a page of one run, or several compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from petra_graph.errors import Problem, SpecError
from petra_graph.record.run_directory import write_output
from petra_graph.record.run_folders import find_run, is_sweep, run_directories
from petra_graph_report.run.metric_values import EVALUATED
from petra_graph_report.run.recorded_run import RecordedRun, read_run
from petra_graph_report.run.run_page import run_page
from petra_graph_report.run.runs_page import runs_page, runs_record

FILE = "report.html"


def report_runs(names: Sequence[str], output: Path | None = None) -> dict[str, Any]:
    """Write the report of some runs.

    Args:
        names: their directories, or "latest", or folders of sweeps; at least one. A run that is named twice counts once.
        output: the file; None: report.html in the directory of the run, or of several runs in the current folder.

    Returns:
        the file's path, and the runs' figures.

    Raises:
        SpecError: one is not a run's directory, or is damaged; the error has all problems.
        RunFailed: the file cannot be written.
    """
    directories = {path.resolve(): path for name in names for path in _find_directories(name)}
    runs, problems = list[RecordedRun](), list[Problem]()
    for directory in directories.values():
        try:
            runs.append(read_run(directory))
        except SpecError as error:
            problems += error.problems
    if problems:
        raise SpecError(problems)
    single = runs[0] if len(runs) == 1 else None
    page = runs_page(runs) if single is None else run_page(single)
    path = output or (Path(FILE) if single is None else single.directory / FILE)
    write_output(path, page)
    record: dict[str, Any] = {"output": str(path), "runs": [_record(run) for run in runs]}
    return record if single is not None else record | runs_record(runs)


def _find_directories(name: str) -> list[Path]:
    path = find_run(name)
    return (run_directories(path) if is_sweep(path) else []) or [path]


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
