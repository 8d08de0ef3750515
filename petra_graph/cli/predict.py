"""`petra-graph predict`: a run's network asked about files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from petra_graph.cli.options_and_output import (
    device_option,
    echo,
    json_option,
    json_text,
    output_option,
    print_table,
    set_option,
    weights_option,
)
from petra_graph.inference.sampling_options import SamplingOptions, read_sampling_options
from petra_graph.units import percent

if TYPE_CHECKING:
    from petra_graph.inference.predict_samples import Prediction

_TYPES = {"prompt": ("TEXT", str), "temperature": ("T", float)}


def _sampling_options(command: Any) -> Any:
    """Add an option for each field of `SamplingOptions`, whose defaults and bounds stay there."""
    for field in reversed(attrs.fields(SamplingOptions)):
        metavar, kind = _TYPES.get(field.name, ("N", int))
        meaning = field.metadata["help"][:1].upper() + field.metadata["help"][1:]
        default = f" Default: {field.default}." if field.default is not None and field.name != "prompt" else ""
        name = f"--{field.name.replace('_', '-')}"
        command = click.option(name, type=kind, metavar=metavar, help=f"{meaning}.{default}")(command)
    return command


@click.command()
@click.argument("run", metavar="RUN")
@click.argument("files", nargs=-1, metavar="FILES...")
@set_option
@weights_option
@click.option("--top", type=click.IntRange(min=1), default=3, show_default=True, metavar="N", help="Classes a sample.")
@click.option("--batch", type=click.IntRange(min=1), metavar="N", help="Samples at a time. Default: as in evaluations.")
@device_option
@output_option("Write JSON to a file.", metavar="FILE")
@json_option
@_sampling_options
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
    **sampling: Any,
) -> None:
    """Print what RUN's network says about FILES: images, arrays (.npy), or what its data set reads.

    RUN is a run's directory, or `latest`. Images are brought to the network's size and channels; an array is a sample, or
    several. Samples are as in the data set: the network normalises them. Where a sample has a class at each of several positions,
    as a text's tokens have, a line is a position: FILE [SAMPLE] (POSITION).

    With --prompt in place of FILES, a network of next tokens continues the text; the same seed gives the same text.
    """
    given = {name: value for name, value in sampling.items() if value is not None}
    if not files and "prompt" not in given:
        raise click.UsageError("Missing argument 'FILES...', or the option '--prompt'.")
    if files and given:
        raise click.UsageError(f"--{next(iter(given)).replace('_', '-')} is for a text, and FILES are given.")
    from petra_graph.inference.continued_text import continued_text
    from petra_graph.inference.predict_samples import predict as predicted
    from petra_graph.inference.sample_files import read_samples
    from petra_graph.inference.saved_run import SavedRun

    chosen = read_sampling_options(given) if given else None
    if batch is not None:
        overrides = (*overrides, f"data.evaluation_batch={batch}")
    opened = SavedRun.open(run, overrides)
    if chosen is not None:
        text = continued_text(opened, opened.load(weights)[0], chosen, device)
        _write(json_text(attrs.asdict(chosen) | {"text": text}) if as_json else text, output)
        return
    samples = read_samples(list(files), opened.network.data, opened.facts)
    network, _ = opened.load(weights)
    found = predicted(opened, network, samples, top=top, device=device)
    records = [prediction.record() for prediction in found]
    if output is not None or as_json:
        _write(json_text(records), output)
    else:
        print_table([_row(prediction, probable=opened.classes_are_probable) for prediction in found])


def _write(text: str, output: Path | None) -> None:
    from petra_graph.record.run_directory import write_output

    if output is not None:
        write_output(output, text + "\n")
    echo(text if output is None else str(output))


def _row(prediction: Prediction, *, probable: bool) -> list[str]:
    many = f" [{prediction.index}]" if prediction.index else ""
    position = f" ({', '.join(map(str, prediction.position))})" if prediction.position else ""
    scores = [
        f"{one.number if one.name is None else one.name} " + (percent(one.score, 2) if probable else f"{one.score:.4g}")
        for one in prediction.best
    ]
    values = ", ".join(scores) or " ".join(f"{value:.6g}" for value in prediction.output)
    return [f"{prediction.file}{many}{position}", values, prediction.note]
