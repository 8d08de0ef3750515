"""`petra-graph predict`: a run's network asked about files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from petra_graph.cli.options_and_output import (
    device_option,
    echo,
    json_option,
    json_text,
    output_option,
    print_json,
    print_table,
    set_option,
    weights_option,
)
from petra_graph.units import percent

if TYPE_CHECKING:
    from petra_graph.inference.predict_samples import Prediction


@click.command()
@click.argument("run", metavar="RUN")
@click.argument("files", nargs=-1, required=True, metavar="FILES...")
@set_option
@weights_option
@click.option("--top", type=click.IntRange(min=1), default=3, show_default=True, metavar="N", help="Classes a sample.")
@click.option("--batch", type=click.IntRange(min=1), metavar="N", help="Samples at a time. Default: as in evaluations.")
@device_option
@output_option("Write JSON to a file.", metavar="FILE")
@json_option
def predict(
    *,
    run: str,
    files: tuple[str, ...],
    overrides: tuple[str, ...],
    weights: str | None,
    top: int,
    batch: int | None,
    device: str,
    output: Path | None,
    as_json: bool,
) -> None:
    """Print what RUN's network says about FILES: images, arrays (.npy), or what its data set reads.

    RUN is a run's directory, or `latest`. Images are brought to the network's size and channels; an array is a sample, or
    several. Samples are as in the data set: the network normalises them. Where a sample has a class at each of several positions,
    as a text's tokens have, a line is a position: FILE [SAMPLE] (POSITION).
    """
    from petra_graph.inference.predict_samples import predict as predicted
    from petra_graph.inference.sample_files import read_samples
    from petra_graph.inference.saved_run import SavedRun
    from petra_graph.record.run_directory import write_output

    if batch is not None:
        overrides = (*overrides, f"data.evaluation_batch={batch}")
    opened = SavedRun.open(run, overrides)
    samples = read_samples(list(files), opened.network.data, opened.facts)
    network, _ = opened.load(weights)
    found = predicted(opened, network, samples, top=top, device=device)
    records = [prediction.record() for prediction in found]
    if output is not None:
        write_output(output, json_text(records) + "\n")
        echo(str(output))
    elif as_json:
        print_json(records)
    else:
        print_table([_row(prediction, probable=opened.classes_are_probable) for prediction in found])


def _row(prediction: Prediction, *, probable: bool) -> list[str]:
    many = f" [{prediction.index}]" if prediction.index else ""
    position = f" ({', '.join(map(str, prediction.position))})" if prediction.position else ""
    scores = [
        f"{one.number if one.name is None else one.name} " + (percent(one.score, 2) if probable else f"{one.score:.4g}")
        for one in prediction.best
    ]
    values = ", ".join(scores) or " ".join(f"{value:.6g}" for value in prediction.output)
    return [f"{prediction.file}{many}{position}", values, prediction.note]
