"""`petra-graph runs`: the runs in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from petra_graph.cli.options_and_output import echo, json_option, print_json, print_table


@click.command()
@click.argument("folder", metavar="[FOLDER]", type=click.Path(path_type=Path), required=False)
@click.option(
    "--sort",
    "order",
    type=click.Choice(["age", "metric"]),
    default="age",
    help="age: the newest first. metric: the best first, each metric of each split apart.",
)
@json_option
def runs(folder: Path | None, order: Literal["age", "metric"], *, as_json: bool) -> None:
    """List the runs in FOLDER ("runs" if none is given): status, epochs, best metric, age, and what differs.

    The metric is checkpoint.best of the run's spec, or else top1 or the loss of the validation data, or else of the test data. What differs are the keys in which runs
    of the same name differ. A run is done, interrupted, failed, running, killed (it ended without a summary), or damaged. Runs of a sweep are named by their folders in it.
    """
    from petra_graph.record.recorded_run import RUNS
    from petra_graph.report.run_groups import run_records, run_rows

    chosen = folder or Path(RUNS)
    none_yet = folder is None and not chosen.exists()
    records = [] if none_yet else run_records(chosen, order)
    if as_json:
        print_json(records)
    elif records:
        print_table(run_rows(records))
    else:
        echo(f"no runs in {chosen}: `petra-graph run SPEC` makes one")
