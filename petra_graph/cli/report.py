"""`petra-graph report`: figures of a run."""

from __future__ import annotations

from pathlib import Path

import click

from petra_graph.cli.common import json_option, print_json


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--figure", type=click.Choice(["fidelity"]), required=True, help="The figure to draw.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Path of the pictures, without suffix. Default: RUN and the figure's name.",
)
@json_option
def report(run: Path, figure: str, output: Path | None, as_json: bool) -> None:
    """Draw figures of RUN, a run's directory, as PNG; this needs matplotlib (the extra `plot`).

    fidelity: the similarity of the stages' gradients with delayed and with end-to-end ones, over training and over the
    stages (the paper's Figures 5 and 6), of a run with a [probe] table. --json prints the means of every epoch.
    """
    from petra_graph.report.fidelity_figures import report_fidelity

    figures = {"fidelity": report_fidelity}[figure](run, output)
    if as_json:
        print_json(figures)
    else:
        click.echo("\n".join(figures["figures"].values()))
