"""`petra-graph predict`: a run's network asked about files, or to continue a text."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import attrs
import click

from petra_graph.cli.options_and_output import (
    device_option,
    import_torch,
    json_option,
    json_text,
    open_run,
    print_table,
    set_option,
    table_text,
    weights_option,
    write_result,
)

if TYPE_CHECKING:
    from petra_graph.inference.predict import FileForm, Prediction


@click.command()
@click.argument("run", metavar="RUN")
@click.argument("files", nargs=-1, metavar="FILES...")
@set_option
@weights_option
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    metavar="N",
    help="Print at most N classes for each sample, the likeliest first.",
)
@click.option("--batch", type=click.IntRange(min=1), metavar="N", help="Samples at a time. Default: as in evaluations.")
@device_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "png", "npy"]),
    help="Default: table; for FILE.csv csv, for other files JSON, for a folder png.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Write to a file; as png or npy that of one sample, or one for each to a folder (a PATH without suffix).",
)
@json_option
@click.option("--prompt", metavar="TEXT", help="Text to continue.")
@click.option("--tokens", type=int, metavar="N", help="Length of the continuation. Default: 200.")
@click.option(
    "--temperature", type=float, metavar="T", help="Divides the logits; 0: always the likeliest token. Default: 0.8."
)
@click.option("--top-k", type=int, metavar="N", help="Draw from this many of the likeliest tokens; default: all.")
@click.option("--seed", type=int, metavar="N", help="Seed of the draws. Default: 0.")
def predict(
    *,
    run: str,
    files: tuple[str, ...],
    overrides: tuple[str, ...],
    weights: str | None,
    top: int,
    batch: int | None,
    device: str,
    form: str | None,
    output: Path | None,
    as_json: bool,
    **sampling: Any,
) -> None:
    """Print what RUN's network says about FILES: images, arrays (.npy; .npz for several inputs), or what its data set reads.

    RUN is a name that `runs` prints, a run's directory, or `latest`. Images are brought to the network's size and channels; an array holds one
    sample or several; a folder means the files in it. Don't normalise the samples: the network does. If a sample has a class
    at each of several positions, like the tokens of a text, each line is one position: FILE [SAMPLE] (POSITION).

    A network that predicts a class, or one or three values, for each pixel writes images: use --output FOLDER. The pixels of a
    class map are class numbers; values from 0 to 1 become black to white. Arrays (--format npy) hold the probabilities of all classes.

    With --prompt instead of FILES, a network that predicts the next token continues the text; the same seed gives the same text.
    """
    given = {name: value for name, value in sampling.items() if value is not None}
    if not files and "prompt" not in given:
        raise click.UsageError("Missing argument 'FILES...', or the option '--prompt'.")
    if files and given:
        raise click.UsageError(f"--{next(iter(given)).replace('_', '-')} is for a text, and FILES are given.")
    form = _choose_form(form, output, as_json=as_json, of_text=bool(given))
    import_torch()
    from petra_graph.inference.continued_text import continued_text, read_sampling_options

    chosen = read_sampling_options(given) if given else None
    opened = open_run(run, overrides if batch is None else (*overrides, f"data.evaluation_batch={batch}"))
    from petra_graph.inference.predict import classes_are_probable, predict_samples, write_predictions
    from petra_graph.inference.samples import read_samples

    network, _ = opened.load(weights)
    if chosen is not None:
        text = continued_text(opened, network, chosen, device)
        write_result(json_text(attrs.asdict(chosen) | {"text": text}) if form == "json" else text, output)
        return
    samples = read_samples(list(files), opened.network.checked.data, opened.facts)
    if form in {"png", "npy"}:
        written = write_predictions(
            opened, network, samples, cast("Path", output), cast("FileForm", form), top=top, device=device
        )
        print_table([_row(one, probable=True) for one in written])
        return
    found = predict_samples(opened, network, samples, top=top, device=device, summed_up=form == "table")
    rows = [_row(one, probable=classes_are_probable(opened)) for one in found]
    if form == "json":
        write_result(json_text([prediction.record() for prediction in found]), output)
    elif form == "csv":
        write_result(_csv_text(found), output)
    else:
        write_result(table_text(rows), output)


def _choose_form(given: str | None, output: Path | None, *, as_json: bool, of_text: bool) -> str:
    """Return the form of the output, which follows from its path where no option gives it."""
    folder = output is not None and (output.is_dir() or (not output.suffix and not output.exists()))
    if given is not None and (as_json or of_text):
        raise click.UsageError(
            f"{'JSON' if as_json else 'A text that is continued'} has no other form: leave out --format {given}."
        )
    by_path = "table"
    if output is not None and not of_text:
        suffixes = {".csv": "csv", ".png": "png", ".npy": "npy"}
        by_path = "png" if folder else suffixes.get(output.suffix, "json")
    form = "json" if as_json else given or by_path
    one_file = output is not None and output.suffix == f".{form}"
    if form in {"png", "npy"} and not (folder or one_file):
        raise click.UsageError(f"--format {form} writes a file for each sample: give a folder with --output.")
    if form not in {"png", "npy"} and output is not None and output.is_dir():
        raise click.UsageError(f"--format {form} writes one file, and {output} is a folder.")
    return form


def _csv_text(found: Sequence[Prediction]) -> str:
    """Return a row for each class of a prediction, the likeliest first, or for each value."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    values = ["class", "name", "score"] if any(one.best for one in found) else ["element", "output"]
    table.writerow(["file", "index", "position", *values])
    for one in found:
        rows = [(best.number, best.name, best.score) for best in one.best] or enumerate(one.output)
        table.writerows([one.file, one.index, " ".join(map(str, one.position)), *row] for row in rows)
    return text.getvalue().rstrip("\n")


def _row(one: Prediction, *, probable: bool) -> list[str]:
    index = f" [{one.index}]" if one.index else ""
    position = f" ({', '.join(map(str, one.position))})" if one.position else ""
    scores = [
        f"{best.number if best.name is None else best.name} "
        + (f"{100 * best.score:.2f} %" if probable else f"{best.score:.4g}")
        for best in one.best
    ]
    values = ", ".join(scores) or " ".join(f"{value:.6g}" for value in one.output)
    return [one.file + index + position, "" if one.written is None else str(one.written), values, one.note]
