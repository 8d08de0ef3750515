"""`petra-graph evaluate`: a run's network on data."""

from __future__ import annotations

from typing import Literal

import attrs
import click

from petra_graph.cli.options_and_output import (
    device_option,
    echo,
    json_option,
    open_run,
    print_json,
    set_option,
    warn_of_changes,
    weights_option,
)


@click.command()
@click.argument("run", metavar="RUN")
@set_option
@weights_option
@click.option(
    "--split",
    type=click.Choice(["test", "validation", "train"]),
    default="test",
    show_default=True,
    help="Which samples; those of training are without those of the validation, and augmented as in the first epoch.",
)
@device_option
@json_option
def evaluate(
    *,
    run: str,
    overrides: tuple[str, ...],
    weights: str | None,
    split: Literal["test", "validation", "train"],
    device: str,
    as_json: bool,
) -> None:
    """Print loss and metrics of RUN's network on its data.

    RUN is a name that `runs` prints, a run's directory, or `latest`. Other data: --set data.options.root=FOLDER, or --set data.name=NAME.
    """
    opened = open_run(run, overrides)
    from petra_graph.inference.evaluate import evaluate_run

    found = evaluate_run(opened, which=weights, split=split, device=device)
    warn_of_changes(found.changed[len(opened.changed) :])
    if weights is None and opened.spec.checkpoint.best is not None:
        echo("these are the last weights; --weights best takes the best ones", err=True)
    if as_json:
        print_json({"run": str(opened.directory), **attrs.asdict(found)})
    else:
        echo(found.text(opened.network.checked.scales))
