"""`petra-graph report`: a page on one run or several, and figures of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from petra_graph.cli.options_and_output import echo, json_option, print_json


@click.command(short_help="Write a page about a run, or compare several.")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "--figure", type=click.Choice(["fidelity"]), help="Draw this figure of one RUN as PNG instead of writing the page."
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Path of the page. Default: report.html in RUN, or in the current folder for several runs. For figures: their path "
    "without suffix; default: RUN and the figure's name.",
)
@json_option
def report(runs: Sequence[str], figure: str | None, output: Path | None, *, as_json: bool) -> None:
    """Write one self-contained HTML page about one or several runs. RUN is a run's directory, or `latest`.

    One run: curves, stages, memory and throughput as planned and as measured, timeline, environment. Several: one
    table, and all curves in the same plots; runs that only differ in their seed share one line, with their spread.

    --figure fidelity: the similarity of the stages' gradients with delayed and with end-to-end ones, over training and
    over the stages (the paper's Figures 5 and 6), of a run with a [probe] table. --json prints the figures.
    """
    if figure is None:
        from petra_graph_report.run.report_file import report_runs

        written = report_runs(runs, output)
        if as_json:
            print_json(written)
        else:
            echo(written["output"])
        return
    if len(runs) > 1:
        raise click.UsageError(f"--figure {figure} is of one RUN (got {len(runs)}).")
    from petra_graph.record.run_folders import find_run
    from petra_graph_report.fidelity_figures import report_fidelity

    figures = report_fidelity(find_run(runs[0]), output)
    if as_json:
        print_json(figures)
    else:
        echo("\n".join(figures["figures"].values()))
