"""`petra-graph report`: figures of a run."""

from __future__ import annotations

from pathlib import Path

import click

from petra_graph.cli.parameters import json_option
from petra_graph.cli.printing import print_json


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--figure", type=click.Choice(["fidelity"]), required=True, help="What to draw.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Path of the pictures, without ending. Default: RUN and the figure's name.",
)
@json_option
def report(run: Path, figure: str, output: Path | None, as_json: bool) -> None:
    """Draw figures of RUN, a run's directory, as PNG; they need matplotlib (the extra `plot`).

    fidelity: how like the stages' gradients are to delayed and to end-to-end ones, over training and over the stages
    (the paper's Figures 5 and 6), of a run with a [probe] table. --json prints the means of every epoch.
    """
    from petra_graph.report.run_fidelity import report_fidelity

    facts = {"fidelity": report_fidelity}[figure](run, output)
    if as_json:
        print_json(facts)
    else:
        click.echo("\n".join(facts["figures"].values()))
