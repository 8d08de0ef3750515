"""`petra-graph run`: train a spec."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from petra_graph.cli.options_and_output import echo, import_torch, json_option, print_json, set_option
from petra_graph.errors import RunFailed
from petra_graph.record.recorded_run import directory_to_resume

if TYPE_CHECKING:
    from petra_graph.planning.saved_plan import SavedPlan


@click.command()
@click.argument("spec", metavar="[SPEC]", required=False)
@set_option
@click.option(
    "--resume",
    metavar="RUN",
    help="Without SPEC: continue a run from its latest checkpoint. RUN is a name that `runs` prints, its directory, or `latest`: the newest run.",
)
@click.option(
    "--processes", type=click.IntRange(min=1), default=1, metavar="N", help="Share the stages among N processes."
)
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="With --processes: if a process dies or fails, restart all of them from the latest checkpoint, at most N times.",
)
@click.option(
    "--fast-dev-run",
    is_flag=True,
    help="Train one epoch of two micro-batches and evaluate on two batches, to find mistakes.",
)
@click.option(
    "--overfit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Train on the same N micro-batches in every epoch, and evaluate on their samples.",
)
@click.option(
    "--plan",
    metavar="FILE",
    help="Place the stages as a plan that `petra-graph plan --json` saved, or as the plan of a run, and compare with it what they take; "
    "a plan of another network or other devices is refused.",
)
@click.option("--dry-run", is_flag=True, help="Check everything, data included, and stop before training.")
@json_option
def run(
    *,
    spec: str | None,
    overrides: tuple[str, ...],
    resume: str | None,
    processes: int,
    max_restarts: int,
    fast_dev_run: bool,
    overfit: int | None,
    plan: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Train SPEC ("-" reads the standard input).

    Progress goes to stderr, the summary to stdout, everything else into a new run directory. Ctrl-C stops between two
    micro-batches and writes a checkpoint, from which --resume continues as if nothing had happened (exit code 130).
    Under torchrun, this process is one of the run's processes.
    """
    if (spec is None) == (resume is None):
        raise click.UsageError("Give SPEC, or --resume RUN: a resumed run keeps its specification.")
    if max_restarts and processes == 1:
        raise click.UsageError("--max-restarts needs --processes: this process cannot outlive itself.")
    overrides = (*_trial_keys(resume, overfit, fast_dev_run=fast_dev_run), *overrides)
    os.environ.setdefault(
        "KINETO_LOG_LEVEL", "99"
    )  # torch's profiler would report on itself; read when torch is imported
    if processes > 1 or "RANK" in os.environ:
        # When a process ends, torch would log each lost connection with its C++ stack; it reads this when imported.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    directory = None if resume is None else directory_to_resume(resume, overrides)
    if directory is not None:
        spec = str(directory / "resolved.toml")
    assert spec is not None
    import_torch()
    if dry_run:
        _print_outline(spec, overrides, processes, plan, as_json=as_json)
    elif processes > 1:
        from petra_graph.training.processes.launch import run_on_processes

        flags = ["--json"] * as_json
        run_on_processes(
            spec, overrides, processes, flags, dict(os.environ), resume=directory, max_restarts=max_restarts, plan=plan
        )
    else:
        _train(spec, overrides, directory, plan, as_json=as_json)


def _trial_keys(resume: str | None, overfit: int | None, *, fast_dev_run: bool) -> tuple[str, ...]:
    """Return the keys that the flags of a trial set; those of `--set` come after them, and win."""
    if fast_dev_run and overfit is not None:
        raise click.UsageError("Give --fast-dev-run or --overfit, not both.")
    if resume is not None and (fast_dev_run or overfit is not None):
        raise click.UsageError("--fast-dev-run and --overfit begin a run: a continued run has the keys that they set.")
    if fast_dev_run:
        return ("run.epochs=1", "run.micro_batches=2", "run.evaluation_batches=2")
    return () if overfit is None else (f"run.micro_batches={overfit}", "run.overfit=true")


def _print_outline(spec: str, overrides: Sequence[str], processes: int, plan: str | None, *, as_json: bool) -> None:
    from petra_graph.training.prepare import prepare
    from petra_graph.training.run_record import outline, run_notes, start_warnings

    prepared = prepare(spec, overrides, processes, saved=_read_plan(plan))
    figures = outline(prepared)
    notes = run_notes(prepared)
    warnings = list(start_warnings(prepared, processes))
    if as_json:
        print_json({**figures, "notes": notes, "warnings": warnings})
        return
    echo("\n".join([*(f"{key}: {value}" for key, value in figures.items()), *notes]))
    for text in warnings:
        echo(f"warning: {text}", err=True)


def _train(spec: str, overrides: Sequence[str], directory: Path | None, plan: str | None, *, as_json: bool) -> None:
    from petra_graph.report.progress import progress, summary_lines
    from petra_graph.training.run import run as train

    try:
        result = train(spec, overrides, progress(), directory, _read_plan(plan))
    except RunFailed as error:
        if as_json and error.summary is not None:
            print_json(error.summary)
        raise
    if result.summary is not None:
        if as_json:
            print_json(result.summary)
        else:
            echo("\n".join(summary_lines(result.summary)))
            if plan is not None and "planned_and_measured" in result.summary:
                from petra_graph.report.planned_and_measured import comparison_text

                echo(comparison_text(result.summary["planned_and_measured"]))
    if result.interrupted is not None:
        raise result.interrupted


def _read_plan(plan: str | None) -> SavedPlan | None:
    if plan is None:
        return None
    from petra_graph.planning.saved_plan import SavedPlan

    return SavedPlan.read(plan)
