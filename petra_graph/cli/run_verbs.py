"""What is done with runs: `petra-graph runs`, `report`, `evaluate`, `predict` and `export`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import attrs
import click

from petra_graph.cli.options_and_output import (
    Json,
    Option,
    Sets,
    echo,
    import_torch,
    json_text,
    print_json,
    table_text,
    verb,
    write_result,
)

if TYPE_CHECKING:
    from petra_graph.inference.predict import FileForm, Prediction
    from petra_graph.inference.saved_run import SavedRun

Weights = Annotated[
    str | None,
    Option("latest, best, the number of a checkpoint's next forward, or a file. Default: the last.", "WHICH"),
]
Device = Annotated[str, Option('Where to compute, as in "cuda:0".', "NAME")]
Changed = Annotated[bool, Option("Take a network that computes something else than in its training.")]


@verb()
def runs(
    folder: Annotated[Path | None, "[FOLDER]"] = None,
    *,
    order: Annotated[
        Literal["age", "metric"],
        Option("age: the newest first. metric: the best first, each metric of each split apart.", names=("--sort",)),
    ] = "age",
    as_json: Json = False,
) -> None:
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


@verb()
def report(
    runs: Annotated[tuple[str, ...], "RUN..."],
    *,
    output: Annotated[
        Path | None, Option("The page. Default: report.html in RUN, or in the current folder for several runs.")
    ] = None,
    as_json: Json = False,
) -> None:
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


@verb()
def evaluate(
    run: Annotated[str, "RUN"],
    *,
    overrides: Sets = (),
    weights: Weights = None,
    split: Annotated[
        Literal["test", "validation", "train"],
        Option("Which samples; those of training are augmented as in the first epoch."),
    ] = "test",
    device: Device = "cpu",
    as_json: Json = False,
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


@verb()
def predict(
    run: Annotated[str, "RUN"],
    files: Annotated[tuple[str, ...], "FILES..."] = (),
    *,
    overrides: Sets = (),
    weights: Weights = None,
    changed: Changed = False,
    top: Annotated[
        int,
        Option("Print at most N classes for each sample, the likeliest first.", "N", least=1),
    ] = 3,
    device: Device = "cpu",
    form: Annotated[
        Literal["table", "png", "npy", "json"] | None,
        Option("Default: table; for a file JSON, for a folder png.", names=("--format",)),
    ] = None,
    output: Annotated[
        Path | None, Option("A file; of several samples as png or npy a folder, a PATH without suffix.", "PATH")
    ] = None,
    as_json: Json = False,
    prompt: Annotated[str | None, Option("Text to continue.", "TEXT")] = None,
    tokens: Annotated[int | None, Option("Length of the continuation. Default: 200.", "N", least=1)] = None,
    temperature: Annotated[
        float | None,
        Option("Divides the logits; 0: always the likeliest token. Default: 0.8.", "T", least=0),
    ] = None,
    top_k: Annotated[
        int | None,
        Option("Draw from this many of the likeliest tokens; default: all.", "N", least=1),
    ] = None,
    seed: Annotated[int | None, Option("Seed of the draws. Default: 0.", "N", least=0)] = None,
) -> None:
    """Print what RUN's network says about FILES: images, arrays (.npy; .npz for several inputs), or what its data set reads.

    RUN is a name that `runs` prints, a run's directory, or `latest`. Images are brought to the network's size and channels; an array holds one
    sample or several; a folder means the files in it. Don't normalise the samples: the network does. If a sample has a class
    at each of several positions, like the tokens of a text, each line is one position: FILE [SAMPLE] (POSITION).

    A network that predicts a class, or one or three values, for each pixel writes images: use --output FOLDER. The pixels of a
    class map are class numbers; values from 0 to 1 become black to white. Arrays (--format npy) hold the probabilities of all classes.

    With --prompt instead of FILES, a network that predicts the next token continues the text; the same seed gives the same text.
    """
    of_text = {"prompt": prompt, "tokens": tokens, "temperature": temperature, "top_k": top_k, "seed": seed}
    given: dict[str, Any] = {name: value for name, value in of_text.items() if value is not None}
    if not files and "prompt" not in given:
        raise click.UsageError("Missing argument 'FILES...', or the option '--prompt'.")
    if files and given:
        raise click.UsageError(f"--{next(iter(given)).replace('_', '-')} is for a text, and FILES are given.")
    form = "json" if as_json else form
    if given and form not in {None, "json"}:
        raise click.UsageError(f"A text that is continued has no other form: leave out --format {form}.")
    chosen = form or ("text" if given else _form_of(output))
    _expect_place(chosen, output)
    opened = _open(run, overrides, changed=changed)
    from petra_graph.inference import predict as predictions
    from petra_graph.inference.samples import read_samples

    network, _ = opened.load(weights)
    if given:
        text = predictions.continued_text(opened, network, device=device, **given)
        write_result(json_text({**given, "text": text}) if chosen == "json" else text, output)
        return
    samples = read_samples(list(files), opened.network.checked.data, opened.facts)
    if chosen in {"png", "npy"}:
        place, kind = cast("Path", output), cast("FileForm", chosen)
        written = predictions.write_predictions(opened, network, samples, place, kind, top=top, device=device)
        echo(table_text([_row(one, probable=True) for one in written]))
        return
    found = predictions.predict_samples(opened, network, samples, top=top, device=device, summed_up=chosen == "table")
    if chosen == "json":
        write_result(json_text([prediction.record() for prediction in found]), output)
    else:
        write_result(table_text([_row(one, probable=opened.gives_logits) for one in found]), output)


def _is_folder(output: Path | None) -> bool:
    return output is not None and (output.is_dir() or (not output.suffix and not output.exists()))


def _form_of(output: Path | None) -> str:
    """Return the form of predictions that follows from their path."""
    if output is None:
        return "table"
    return "png" if _is_folder(output) else {".png": "png", ".npy": "npy"}.get(output.suffix, "json")


def _expect_place(form: str, output: Path | None) -> None:
    """Refuse a path that does not go with the form."""
    if form not in {"png", "npy"}:
        if output is not None and output.is_dir():
            raise click.UsageError(f"--format {form} writes one file, and {output} is a folder.")
    elif not _is_folder(output) and (output is None or output.suffix != f".{form}"):
        raise click.UsageError(f"--format {form} writes a file for each sample: give a folder with --output.")


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


@verb()
def export(
    run: Annotated[str, "RUN"],
    *,
    kind: Annotated[
        Literal["safetensors", "torch-export", "onnx"],
        Option("Only the tensors, or a program for torch or ONNX.", names=("--format",)),
    ],
    weights: Weights = None,
    changed: Changed = False,
    output: Annotated[Path | None, Option("Default: RUN/network, with a suffix.", "FILE")] = None,
    as_json: Json = False,
) -> None:
    """Write RUN's network: RUN is a name that `runs` prints, a run's directory, or `latest`.

    A program takes samples as they are in the data set, normalises them itself, and accepts batches of any size. An ONNX program
    names its axes, and has class names and the normalisation in its metadata. The program's outputs are compared with the
    network's on samples of the training, which the run has kept.
    """
    opened = _open(run, changed=changed)
    from petra_graph.inference.export import export_network

    found = export_network(opened, opened.load(weights)[0], kind, output)
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
