"""`petra-graph report`: a page about one run or several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from petra_graph.cli.options_and_output import echo, json_option, output_option, print_json


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@output_option("The page. Default: report.html in RUN, or in the current folder for several runs.")
@json_option
def report(runs: Sequence[str], output: Path | None, *, as_json: bool) -> None:
    """Write one self-contained HTML page about one or several runs. RUN is a name that `runs` prints, a run's directory, a folder of runs, such as a sweep's, or `latest`.

    One run: curves, stages with their seconds and memory as planned and as measured, timeline, environment. Several: one
    table, and all curves in the same plots; runs that only differ in their seed share one line, with their spread.
    """
    from petra_graph.report.pages.runs_page import report_runs

    written = report_runs(runs, output)
    if as_json:
        print_json(written)
    else:
        echo(written["output"])
