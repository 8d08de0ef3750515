"""What is done with runs: `petra-graph runs`, `report`, `evaluate`, `predict` and `export`."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import attrs
import click

from petra_graph.cli.options_and_output import (
    echo,
    format_option,
    import_torch,
    json_option,
    json_text,
    output_option,
    print_json,
    set_option,
    table_text,
    write_result,
)

if TYPE_CHECKING:
    from petra_graph.inference.export import Format
    from petra_graph.inference.predict import FileForm, Prediction
    from petra_graph.inference.saved_run import SavedRun

verbs = click.Group()
weights_option = click.option(
    "--weights",
    metavar="WHICH",
    help="Weights of a checkpoint (latest, best, or the number of its next forward), or a file. Default: the run's final weights.",
)
device_option = click.option(
    "--device", default="cpu", show_default=True, metavar="NAME", help='Where to compute, as in "cuda:0".'
)
changed_option = click.option(
    "--changed", is_flag=True, help="Take a network that computes something else than in its training."
)


@verbs.command()
@click.argument("folder", metavar="[FOLDER]", type=click.Path(path_type=Path), required=False)
@click.option(
    "--sort",
    "order",
    type=click.Choice(["age", "metric"]),
    default="age",
    help="age: the newest first. metric: the best first, each metric of each split apart.",
)
@json_option
def runs(folder: Path | None, order: Literal["age", "metric"], *, as_json: bool) -> None:
    """List the runs in FOLDER ("runs" if none is given): status, epochs, best metric, age, and what differs.

    The metric is checkpoint.best of the run's spec, or else top1 or the loss of the validation data, or else of the test data. What differs are the keys in which runs
    of the same name differ. A run is done, interrupted, failed, running, killed (it ended without a summary), or damaged. Runs of a sweep are named by their folders in it.
    """
    from petra_graph.record.recorded_run import RUNS
    from petra_graph.report.run_groups import run_records, run_rows

    chosen = folder or Path(RUNS)
    none_yet = folder is None and not chosen.exists()
    records = [] if none_yet else run_records(chosen, order)
    if as_json:
        print_json(records)
    elif records:
        echo(table_text(run_rows(records)))
    else:
        echo(f"no runs in {chosen}: `petra-graph run SPEC` makes one")


@verbs.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@output_option("The page. Default: report.html in RUN, or in the current folder for several runs.")
@json_option
def report(runs: Sequence[str], output: Path | None, *, as_json: bool) -> None:
    """Write one self-contained HTML page about one or several runs. RUN is a name that `runs` prints, a run's directory, a folder of runs, such as a sweep's, or `latest`.

    One run: curves, stages with their seconds and memory as planned and as measured, timeline, environment. Several: one
    table, and all curves in the same plots; runs that only differ in their seed share one line, with their spread.
    """
    from petra_graph.report.pages.runs_page import report_runs

    written = report_runs(runs, output)
    if as_json:
        print_json(written)
    else:
        echo(written["output"])


def _open(run: str, overrides: Iterable[str] = (), *, changed: bool) -> SavedRun:
    import_torch()
    from petra_graph.inference.saved_run import SavedRun

    opened = SavedRun.open(run, overrides, changed=changed)
    _warn(opened.changed)
    return opened


def _warn(changed: Sequence[str]) -> None:
    for text in changed:
        echo(f"warning: changed since the training: {text}", err=True)


@verbs.command()
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
    opened = _open(run, overrides, changed=True)
    from petra_graph.inference.evaluate import evaluate_run

    found = evaluate_run(opened, which=weights, split=split, device=device)
    _warn(found.changed[len(opened.changed) :])
    if weights is None and opened.spec.checkpoint.best is not None:
        echo("these are the last weights; --weights best takes the best ones", err=True)
    if as_json:
        print_json({"run": str(opened.directory), **attrs.asdict(found)})
    else:
        echo(found.text(opened.network.checked.scales))


@verbs.command()
@click.argument("run", metavar="RUN")
@click.argument("files", nargs=-1, metavar="FILES...")
@set_option
@weights_option
@changed_option
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
@format_option(
    ("table", "csv", "png", "npy"), "Default: table; for FILE.csv csv, for other files JSON, for a folder png."
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Write to a file; as png or npy that of one sample, or one for each to a folder (a PATH without suffix).",
)
@click.option("--prompt", metavar="TEXT", help="Text to continue.")
@click.option("--tokens", type=click.IntRange(min=1), metavar="N", help="Length of the continuation. Default: 200.")
@click.option(
    "--temperature",
    type=click.FloatRange(min=0),
    metavar="T",
    help="Divides the logits; 0: always the likeliest token. Default: 0.8.",
)
@click.option(
    "--top-k",
    type=click.IntRange(min=1),
    metavar="N",
    help="Draw from this many of the likeliest tokens; default: all.",
)
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Seed of the draws. Default: 0.")
def predict(
    *,
    run: str,
    files: tuple[str, ...],
    overrides: tuple[str, ...],
    weights: str | None,
    changed: bool,
    top: int,
    batch: int | None,
    device: str,
    form: str | None,
    output: Path | None,
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
    if given and form not in {None, "json"}:
        raise click.UsageError(f"A text that is continued has no other form: leave out --format {form}.")
    form = form or ("text" if given else _form_of(output))
    _expect_place(form, output)
    opened = _open(run, overrides if batch is None else (*overrides, f"data.evaluation_batch={batch}"), changed=changed)
    from petra_graph.inference import predict as predictions
    from petra_graph.inference.samples import read_samples

    network, _ = opened.load(weights)
    if given:
        text = predictions.continued_text(opened, network, device=device, **given)
        write_result(json_text({**given, "text": text}) if form == "json" else text, output)
        return
    samples = read_samples(list(files), opened.network.checked.data, opened.facts)
    if form in {"png", "npy"}:
        place, kind = cast("Path", output), cast("FileForm", form)
        written = predictions.write_predictions(opened, network, samples, place, kind, top=top, device=device)
        echo(table_text([_row(one, probable=True) for one in written]))
        return
    found = predictions.predict_samples(opened, network, samples, top=top, device=device, summed_up=form == "table")
    if form == "json":
        write_result(json_text([prediction.record() for prediction in found]), output)
    elif form == "csv":
        write_result(_csv_text(found), output)
    else:
        write_result(table_text([_row(one, probable=opened.gives_logits) for one in found]), output)


def _is_folder(output: Path | None) -> bool:
    return output is not None and (output.is_dir() or (not output.suffix and not output.exists()))


def _form_of(output: Path | None) -> str:
    """Return the form of predictions that follows from their path."""
    if output is None:
        return "table"
    return "png" if _is_folder(output) else {".csv": "csv", ".png": "png", ".npy": "npy"}.get(output.suffix, "json")


def _expect_place(form: str, output: Path | None) -> None:
    """Refuse a path that does not go with the form."""
    if form not in {"png", "npy"}:
        if output is not None and output.is_dir():
            raise click.UsageError(f"--format {form} writes one file, and {output} is a folder.")
    elif not _is_folder(output) and (output is None or output.suffix != f".{form}"):
        raise click.UsageError(f"--format {form} writes a file for each sample: give a folder with --output.")


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


@verbs.command()
@click.argument("run", metavar="RUN")
@click.option(
    "--format",
    "form",
    type=click.Choice(["safetensors", "torch-export", "onnx"]),
    required=True,
    help="Only the tensors, or a program for torch or ONNX.",
)
@weights_option
@changed_option
@output_option("Default: RUN/network, with a suffix.", metavar="FILE")
@json_option
def export(*, run: str, form: Format, weights: str | None, changed: bool, output: Path | None, as_json: bool) -> None:
    """Write RUN's network: RUN is a name that `runs` prints, a run's directory, or `latest`.

    A program takes samples as they are in the data set, normalises them itself, and accepts batches of any size. An ONNX program
    names its axes, and has class names and the normalisation in its metadata. The program's outputs are compared with the
    network's on samples of the training, which the run has kept.
    """
    opened = _open(run, changed=changed)
    from petra_graph.inference.export import export_network

    found = export_network(opened, opened.load(weights)[0], form, output)
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
