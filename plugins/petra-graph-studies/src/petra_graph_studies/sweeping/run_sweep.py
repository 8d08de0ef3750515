"""`petra-graph run --sweep`: many runs of a spec, and how they compare."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from petra_graph.cli.options_and_output import ANY_WIDTH, echo, print_json, print_table
from petra_graph.errors import RunFailed
from petra_graph.record.run_folders import is_sweep
from petra_graph.units import listed, plural

if TYPE_CHECKING:
    from petra_graph.sweeping.combinations import Combination
    from petra_graph.sweeping.prepare_sweep import PreparedGroup
    from petra_graph.sweeping.sweep_folder import Sweep
    from petra_graph.sweeping.sweep_run import Described


def refuse_usage(resume: str | None, directory: Path | None, *, begins: bool, own: bool) -> None:
    """Refuse options that do not go together.

    Args:
        resume: the run or sweep to continue, if one is named.
        directory: its directory, if no sweep is described.
        begins: whether a sweep is described.
        own: whether options are given that a sweep keeps.
    """
    if "RANK" in os.environ:
        raise click.UsageError("A sweep starts processes of its own: leave torchrun out.")
    if resume is not None and (begins or own):
        which = f" ({directory})" if directory is not None else ""
        message = f"A resumed sweep keeps its runs{which}: with --resume, give only --at-once or --json."
        raise click.UsageError(message)
    if not begins and (directory is None or not is_sweep(directory)):
        raise click.UsageError("--at-once is of a sweep: give --sweep or --seeds as well.")


def describe(spec: str, overrides: Sequence[str], sweeps: Sequence[str], seeds: int | None) -> Described:
    """Return the sweep that `--sweep` and `--seeds` describe.

    Raises:
        SpecError: they cannot be read, or name a key twice.
    """
    from petra_graph.sweeping.combinations import axes_of_texts
    from petra_graph.sweeping.sweep_run import Described

    return Described.of(spec, overrides, axes_of_texts(sweeps), seeds)


def run_sweep(
    described: Described, processes: int, max_restarts: int, at_once: int, *, dry_run: bool, as_json: bool
) -> None:
    """Prepare all combinations, and train them.

    Raises:
        SpecError, PluginError, NoFeasiblePlan: before anything is started, with all problems.
        RunFailed: runs have failed; the others were finished first.
        Interrupted: a request to stop has arrived.
    """
    prepared = described.prepare(processes)
    for text in dict.fromkeys(text for group in prepared for text in group.warnings):
        having = [group.words for group in prepared if text in group.warnings]
        which = f" ({listed(having)})" if len(having) < len(prepared) else ""
        echo(f"warning: {text}{which}", err=True)
    if dry_run:
        _print_outline(described.combinations, prepared, as_json=as_json)
    else:
        _carry_out(described.begin(prepared, processes, max_restarts, at_once), as_json=as_json)


def resume_sweep(folder: Path, at_once: int | None, *, dry_run: bool, as_json: bool) -> None:
    """Continue a sweep, as many runs at a time as when it began unless `at_once` says another number.

    Raises:
        SpecError, PluginError, NoFeasiblePlan: it cannot be continued.
        RunFailed, Interrupted: as `run_sweep`.
    """
    from petra_graph.sweeping.sweep_run import resumed

    sweep = resumed(folder, at_once)
    if not dry_run:
        _carry_out(sweep, as_json=as_json)
    elif as_json:
        print_json([{"run": member.words, "status": member.status()} for member in sweep.members])
    else:
        print_table([("run", "status"), *((member.words, member.status()) for member in sweep.members)])


def _print_outline(chosen: Sequence[Combination], prepared: Sequence[PreparedGroup], *, as_json: bool) -> None:
    if as_json:
        groups = [{"combination": group.words, **group.figures, "notes": [*group.notes]} for group in prepared]
        print_json({"runs": [one.words for one in chosen], "combinations": groups})
        return
    echo(f"{plural(len(chosen), 'run')} of {plural(len(prepared), 'combination')}")
    heads = ["stages", "parameters", "schedule", "micro-batches", "updates"]
    rows = [[group.words, *(str(group.figures[head]) for head in heads)] for group in prepared]
    print_table([["combination", *heads], *rows])
    for text in dict.fromkeys(text for group in prepared for text in group.notes):
        echo(text)


def _carry_out(sweep: Sweep, *, as_json: bool) -> None:
    from petra_graph.sweeping.sweep_run import carry_out, continues_with
    from petra_graph.sweeping.sweep_table import counts, sweep_table

    some = f", {sweep.at_once} at a time" if sweep.at_once > 1 else ""
    echo(f"sweep of {plural(len(sweep.members), 'run')}{some}: {sweep.folder}", err=True)
    ended = carry_out(sweep)
    statuses = [member.status() for member in sweep.members]
    if as_json:
        members = [
            {"run": one.words, "status": status, "directory": one.directory and str(one.directory)}
            for one, status in zip(sweep.members, statuses, strict=True)
        ]
        print_json({"directory": str(sweep.folder), "members": members, **(ended.report or {})})
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else ANY_WIDTH
        echo(f"{sweep_table(sweep, width)}{counts(statuses)}")
        if ended.report is not None:
            echo(f"comparison: {ended.report['output']}")
        if ended.interrupted is not None:
            echo(f"continue with: {continues_with(sweep)}")
        echo(f"results: {sweep.folder}")
    if ended.interrupted is not None:
        raise ended.interrupted
    if ended.failed:
        raise RunFailed(ended.failed)
