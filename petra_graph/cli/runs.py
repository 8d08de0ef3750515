"""`petra-graph runs`: the runs in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from petra_graph.cli.common import echo, json_option, print_json, print_table


@click.command()
@click.argument("folder", metavar="[FOLDER]", type=click.Path(path_type=Path), required=False)
@click.option(
    "--sort",
    "order",
    type=click.Choice(["age", "metric"]),
    default="age",
    help="age: the youngest first. metric: the best first.",
)
@json_option
def runs(folder: Path | None, order: Literal["age", "metric"], *, as_json: bool) -> None:
    """List the runs in FOLDER ("runs" if none is given): status, epochs, best metric, age, checkpoints.

    The metric is checkpoint.best of the run's spec, else test/top1, else test/loss. A run is done, interrupted, failed,
    running, killed (it ended without a summary), or damaged.
    """
    from petra_graph.record.run_folders import RUNS
    from petra_graph.report.run.listing import rows, run_records

    chosen = folder or Path(RUNS)
    none_yet = folder is None and not chosen.exists()
    records = [] if none_yet else run_records(chosen, order)
    if as_json:
        print_json(records)
    elif records:
        print_table(rows(records))
    else:
        echo(f"no runs in {chosen}: `petra-graph run SPEC` makes one")
