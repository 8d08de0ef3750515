"""`petra-graph run`: train a spec."""

from __future__ import annotations

import os

import click

from petra_graph.cli.common import json_option, print_json, set_option
from petra_graph.errors import RunFailed


@click.command()
@click.argument("spec", metavar="SPEC")
@set_option
@click.option(
    "--processes", type=click.IntRange(min=1), default=1, metavar="N", help="Share the stages among N processes."
)
@click.option("--dry-run", is_flag=True, help="Check everything, data included, and stop before training.")
@json_option
def run(spec: str, overrides: tuple[str, ...], processes: int, dry_run: bool, as_json: bool) -> None:
    """Train SPEC ("-" reads the standard input).

    Progress goes to stderr, the summary to stdout, everything else into a new run directory. Ctrl-C stops between two
    micro-batches, with everything written (exit code 130). Under torchrun, this process is one of the run's.
    """
    if processes > 1 or "RANK" in os.environ:
        # When a process ends, torch would log each lost connection with its C++ stack; it reads this when imported.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if dry_run:
        from petra_graph.training.prepare import outline, prepare

        figures = outline(prepare(spec, overrides, processes))
        if as_json:
            print_json(figures)
        else:
            click.echo("\n".join(f"{key}: {value}" for key, value in figures.items()))
        return
    if processes > 1:
        from petra_graph.training.launch import run_on_processes

        run_on_processes(spec, overrides, processes, ["--json"] * as_json, dict(os.environ))
        return
    from petra_graph.report.progress import progress, summary_lines
    from petra_graph.training.run import run as train

    try:
        result = train(spec, overrides, progress())
    except RunFailed as error:
        if as_json and error.summary is not None:
            print_json(error.summary)
        raise
    if result.summary is not None:
        if as_json:
            print_json(result.summary)
        else:
            click.echo("\n".join(summary_lines(result.summary)))
    if result.interrupted is not None:
        raise result.interrupted
