"""`petra-graph-sample`: text from a run's network."""

from __future__ import annotations

import sys
from typing import Any

import click

from petra_graph.errors import PetraGraphError
from petra_graph_transformers.declared import SamplingOptions


@click.command()
@click.argument("run", metavar="RUN")
@click.option("--prompt", default="\n", metavar="TEXT", help="Text that the sample continues. Default: a new line.")
@click.option("--tokens", default=500, show_default=True, metavar="N", help="Length of the sample, without the prompt.")
@click.option(
    "--temperature", default=0.8, show_default=True, help="Divides the logits; 0: the likeliest token always."
)
@click.option("--top-k", type=int, metavar="K", help="Draw from the K likeliest tokens. Default: from all.")
@click.option("--seed", default=0, show_default=True, help="Of the draws.")
@click.option(
    "--weights", metavar="WHICH", help="latest, best, or the forward behind a checkpoint. Default: at the run's end."
)
def sample(run: str, weights: str | None, **options: Any) -> None:
    """Print text that the network of RUN writes.

    RUN is the directory of a run that was trained on text, or `latest`.
    """
    try:
        chosen = SamplingOptions(**options)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    import petra_graph
    from petra_graph_transformers.sampling import sampled_text

    network = petra_graph.load(run, weights=weights)
    click.echo(sampled_text(network, network.facts, chosen))


def main() -> None:
    """Run the command, and exit with the codes of petra-graph."""
    try:
        sample(prog_name="petra-graph-sample")
    except PetraGraphError as error:
        for problem in error.problems:
            click.echo(str(problem), err=True)
        sys.exit(error.exit_code)
