"""`petra-graph runs`: the runs in a folder."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import click

from petra_graph.cli.options_and_output import ANY_WIDTH, echo, json_option, output_width, print_json, table_text


@click.command(short_help="List runs: status, best metric, age.")
@click.argument("folder", metavar="[FOLDER]", type=click.Path(path_type=Path), required=False)
@click.option(
    "--sort",
    "order",
    type=click.Choice(["age", "metric"]),
    default="age",
    help="age: the newest first. metric: the best first, each metric of each split apart.",
)
@click.option(
    "--where",
    multiple=True,
    metavar="KEY=VALUE",
    help="Only runs whose resolved spec has this value, as in --where method.name=petra; or status=done. May be repeated.",
)
@json_option
def runs(folder: Path | None, order: Literal["age", "metric"], *, where: tuple[str, ...], as_json: bool) -> None:
    """List the runs in FOLDER ("runs" if none is given): status, epochs, best metric, age, and what differs.

    The metric is checkpoint.best of the run's spec, or else top1 or the loss of the validation data, or else of the test data. What differs are the keys in which runs
    of the same name differ. A run is done, interrupted, failed, running, killed (it ended without a summary), or damaged. Runs of a sweep are named by their folders in it.
    """
    from petra_graph.record.run_folders import RUNS
    from petra_graph_report.run.run_list import rows, run_records

    chosen = folder or Path(RUNS)
    none_yet = folder is None and not chosen.exists()
    records = [] if none_yet else run_records(chosen, order, where=where)
    if as_json:
        print_json(records)
    elif records:
        _print(rows(records), output_width())
    else:
        such = f" with {' and '.join(where)}" if where else ": `petra-graph run SPEC` makes one"
        echo(f"no runs in {chosen}{such}")


def _print(table: Sequence[Sequence[str]], width: int) -> None:
    """Print a table; if a row is too long for a line, its last cell is below it, and its name above it if it must be."""
    whole = table_text(table, ANY_WIDTH).splitlines()
    if max(map(len, whole)) <= width:
        echo("\n".join(whole))
        return
    lines = table_text([row[:-1] for row in table], ANY_WIDTH).splitlines()
    if alone := max(map(len, lines)) > width:
        lines = table_text([row[1:-1] for row in table], ANY_WIDTH, indent=4).splitlines()
    for line, row in zip(lines, table, strict=True):
        if alone:
            echo(row[0])
        echo(line.rstrip())
        for below in textwrap.wrap(row[-1], max(20, width - 4)):
            echo(f"    {below}")
