"""`petra-graph export`: a run's network for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from petra_graph.cli.options_and_output import (
    echo,
    json_option,
    open_run,
    output_option,
    print_json,
    weights_option,
)

if TYPE_CHECKING:
    from petra_graph.inference.export import Format


@click.command()
@click.argument("run", metavar="RUN")
@click.option(
    "--format",
    "form",
    type=click.Choice(["safetensors", "torch-export", "onnx"]),
    required=True,
    help="Only the tensors, or a program for torch or ONNX.",
)
@weights_option
@output_option("Default: RUN/network, with a suffix.", metavar="FILE")
@json_option
def export(*, run: str, form: Format, weights: str | None, output: Path | None, as_json: bool) -> None:
    """Write RUN's network: RUN is a name that `runs` prints, a run's directory, or `latest`.

    A program takes samples as they are in the data set, normalises them itself, and accepts batches of any size. An ONNX program
    names its axes, and has class names and the normalisation in its metadata. The program's outputs are compared with the
    network's on samples of the training, which the run has kept.
    """
    opened = open_run(run)
    from petra_graph.inference.export import SUFFIXES, export_network

    network, _ = opened.load(weights)
    found = export_network(opened, network, form, output or opened.directory / f"network{SUFFIXES[form]}")
    if as_json:
        print_json(attrs.asdict(found) | {"file": str(found.file)})
        return
    echo(str(found.file))
    if found.difference is not None:
        echo(
            f"outputs differ from the network's by at most {found.difference:.2g} on {found.samples:,} samples "
            f"(tolerance {found.tolerance:.2g})"
        )
    if found.note:
        echo(found.note)
