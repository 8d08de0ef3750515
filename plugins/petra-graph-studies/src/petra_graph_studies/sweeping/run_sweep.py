"""`petra-graph run --sweep`: many runs of a spec, and how they compare."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from petra_graph.cli.options_and_output import echo, output_width, print_json, print_table
from petra_graph.errors import RunFailed
from petra_graph.record.run_folders import is_sweep
from petra_graph.units import listed, plural
from petra_graph_studies.sweeping.combinations import Combination, axes_of_texts
from petra_graph_studies.sweeping.prepare_sweep import PreparedGroup
from petra_graph_studies.sweeping.sweep_folder import Sweep
from petra_graph_studies.sweeping.sweep_run import Described, carry_out, continues_with, reopen_sweep
from petra_graph_studies.sweeping.sweep_table import count_statuses, sweep_table


def sweep(
    *,
    spec: str | None,
    overrides: Sequence[str],
    sweeps: Sequence[str],
    seeds: int | None,
    at_once: int | None,
    resume: str | None,
    directory: Path | None,
    own: bool,
    processes: int,
    max_restarts: int,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Train the runs that `--sweep` and `--seeds` describe, or continue a sweep.

    Args:
        spec: None with `resume`; this and what is not listed here are the options of `petra-graph run`.
        resume: the run or sweep to continue, if one is named.
        directory: its directory, if no sweep is described.
        own: whether options are given that a sweep keeps.

    Raises:
        click.UsageError: the options do not go together.
        SpecError, PluginError, NoFeasiblePlan: before anything is started, with all problems.
        RunFailed: runs have failed; the others were finished first.
        Interrupted: a request to stop has arrived.
    """
    begins = bool(sweeps or seeds)
    _refuse_usage(resume, directory, begins=begins, own=own)
    if directory is not None:
        _resume(directory, at_once, dry_run=dry_run, as_json=as_json)
        return
    described = Described.of(str(spec), overrides, axes_of_texts(sweeps), seeds)
    prepared = described.prepare(processes)
    for text in dict.fromkeys(text for group in prepared for text in group.warnings):
        having = [group.words for group in prepared if text in group.warnings]
        which = f" ({listed(having)})" if len(having) < len(prepared) else ""
        echo(f"warning: {text}{which}", err=True)
    if dry_run:
        _print_outline(described.combinations, prepared, as_json=as_json)
    else:
        _carry_out(described.begin(prepared, processes, max_restarts, at_once or 1), as_json=as_json)


def _refuse_usage(resume: str | None, directory: Path | None, *, begins: bool, own: bool) -> None:
    if "RANK" in os.environ:
        raise click.UsageError("A sweep starts processes of its own: leave torchrun out.")
    if resume is not None and (begins or own):
        which = f" ({directory})" if directory is not None else ""
        message = f"A resumed sweep keeps its runs{which}: with --resume, give only --at-once or --json."
        raise click.UsageError(message)
    if not begins and (directory is None or not is_sweep(directory)):
        raise click.UsageError("--at-once is of a sweep: give --sweep or --seeds as well.")


def _resume(folder: Path, at_once: int | None, *, dry_run: bool, as_json: bool) -> None:
    found = reopen_sweep(folder, at_once)
    if not dry_run:
        _carry_out(found, as_json=as_json)
    elif as_json:
        print_json([{"run": member.words, "status": member.status()} for member in found.members])
    else:
        print_table([("run", "status"), *((member.words, member.status()) for member in found.members)])


def _print_outline(chosen: Sequence[Combination], prepared: Sequence[PreparedGroup], *, as_json: bool) -> None:
    if as_json:
        groups = [{"combination": group.words, **group.figures} for group in prepared]
        print_json({"runs": [one.words for one in chosen], "combinations": groups})
        return
    echo(f"{plural(len(chosen), 'run')} of {plural(len(prepared), 'combination')}")
    heads = ["stages", "parameters", "schedule", "micro-batches", "updates"]
    rows = [[group.words, *(str(group.figures[head]) for head in heads)] for group in prepared]
    print_table([["combination", *heads], *rows])


def _carry_out(planned: Sweep, *, as_json: bool) -> None:
    some = f", {planned.at_once} at a time" if planned.at_once > 1 else ""
    echo(f"sweep of {plural(len(planned.members), 'run')}{some}: {planned.folder}", err=True)
    ended = carry_out(planned)
    statuses = [member.status() for member in planned.members]
    if as_json:
        members = [
            {"run": one.words, "status": status, "directory": one.directory and str(one.directory)}
            for one, status in zip(planned.members, statuses, strict=True)
        ]
        print_json({"directory": str(planned.folder), "members": members, **(ended.report or {})})
    else:
        echo(f"{sweep_table(planned, output_width())}{count_statuses(statuses)}")
        if ended.report is not None:
            echo(f"comparison: {ended.report['output']}")
        if ended.interrupted is not None:
            echo(f"continue with: {continues_with(planned)}")
        echo(f"results: {planned.folder}")
    if ended.interrupted is not None:
        raise ended.interrupted
    if ended.failed:
        raise RunFailed(ended.failed)
