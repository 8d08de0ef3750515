"""What the verbs of a finished run share."""

from __future__ import annotations

from collections.abc import Sequence

import click

from petra_graph.cli.options_and_output import echo

weights_option = click.option(
    "--weights",
    metavar="WHICH",
    help="Weights of a checkpoint (latest, best, or the number of its next forward), or a file. Default: the run's final weights.",
)
device_option = click.option(
    "--device", default="cpu", show_default=True, metavar="NAME", help='Where to compute, as in "cuda:0".'
)


def warn_of_changes(changed: Sequence[str]) -> None:
    """Print what of a run's code and data is not as it was in its training."""
    for text in changed:
        echo(f"warning: changed since the training: {text}", err=True)
