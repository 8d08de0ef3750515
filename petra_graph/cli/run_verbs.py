"""What is done with runs: `petra-graph runs`, `report`, `evaluate`, `predict` and `export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import attrs
import click

from petra_graph.cli.options_and_output import Answer, Option, Sets, echo, import_torch, verb
from petra_graph.report.tables import aligned

if TYPE_CHECKING:
    from petra_graph.api import Run

RunName = Annotated[str, "RUN"]
Weights = Annotated[str | None, Option("latest, best, a checkpoint's number, or a file. Default: the last.", "WHICH")]
Device = Annotated[str, Option('Where to compute, as in "cuda:0".', "NAME")]
Changed = Annotated[bool, Option("Take a network that computes something else than in its training.")]


@verb()
def runs(folder: Annotated[Path | None, "[FOLDER]"] = None) -> Answer:
    """List the runs in FOLDER, the newest first. Shown are status, epochs, best metric, age, and in which keys runs of one name differ.

    Without FOLDER, those in "runs". The metric is checkpoint.best of the run's spec, or else top1 or the loss of the validation data, or else of
    the test data. A run is done, interrupted, failed, running, or killed (it ended without a summary).
    """
    from petra_graph.record.run_directory import RUNS
    from petra_graph.report.run_groups import list_runs, run_row

    chosen = folder or Path(RUNS)
    found, unread = ([], []) if folder is None and not chosen.exists() else list_runs(chosen)
    for text in unread:
        echo(text, err=True)
    rows = list(map(run_row, found))
    lines = aligned([list(rows[0]), *(list(row.values()) for row in rows)]) if rows else []
    return Answer(found, "\n".join(lines) or f"no runs in {chosen}: `petra-graph run SPEC` makes one")


@verb()
def report(
    runs: Annotated[tuple[str, ...], "RUN..."],
    *,
    output: Annotated[Path | None, Option("The page. Default: report.html in RUN; for several runs, here.")] = None,
) -> Answer:
    """Write an HTML page about one or several runs. RUN is a name that `runs` prints, a run's directory, a folder of runs, as a sweep's, or `latest`.

    Runs that only differ in their seed share one line, with their spread. Of one run also its stages as planned and as measured.
    """
    from petra_graph.report.pages.runs_page import report_runs

    written = report_runs(runs, output)
    return Answer(written, written["output"])


def _open(run: str) -> Run:
    import_torch()
    from petra_graph.api import Run
    from petra_graph.record.run_directory import find_run

    return Run(find_run(run), lambda text: echo(f"warning: {text}", err=True))


@verb()
def evaluate(
    run: RunName,
    *,
    overrides: Sets = (),
    weights: Weights = None,
    split: Annotated[Literal["test", "validation", "train"], Option("Which samples.")] = "test",
    device: Device = "cpu",
) -> Answer:
    """Print loss and metrics of RUN's network on its data.

    RUN is a name that `runs` prints, a run's directory, or `latest`. Other data: --set data.options.root=FOLDER, or --set data.name=NAME.
    Samples of training are augmented as in the first epoch.
    """
    opened = _open(run)
    found = opened.evaluate(overrides, weights=weights, split=split, device=device)
    figures = attrs.asdict(found, filter=lambda one, _: one.name != "scales")
    return Answer({"run": str(opened.directory), **figures}, str(found))


@verb()
def predict(
    run: RunName,
    files: Annotated[tuple[str, ...], "FILES..."] = (),
    *,
    overrides: Sets = (),
    weights: Weights = None,
    changed: Changed = False,
    top: Annotated[int, Option("Print the N likeliest classes of each sample.", "N", least=1)] = 3,
    device: Device = "cpu",
    prompt: Annotated[str | None, Option("Text to continue.", "TEXT")] = None,
    tokens: Annotated[int | None, Option("Length of the continuation. Default: 200.", "N", least=1)] = None,
    temperature: Annotated[float | None, Option("Divides logits; 0: no draws. Default: 0.8.", "T", least=0)] = None,
    top_k: Annotated[int | None, Option("Draw from the K likeliest tokens. Default: all.", "K", least=1)] = None,
    seed: Annotated[int | None, Option("Seed of the draws. Default: 0.", "N", least=0)] = None,
) -> Answer:
    """Print what RUN's network says about FILES. They are images, arrays (.npy), or what its data set reads.

    RUN is a name that `runs` prints, a run's directory, or `latest`. Images are brought to the network's size and channels; an array holds one
    sample or several. Don't normalise the samples: the network does. Where a sample's target is not one class, the network's
    outputs are printed. With --prompt instead of FILES, a network that predicts the next token continues the text; the same seed gives the same text.
    """
    of_text = {"prompt": prompt, "tokens": tokens, "temperature": temperature, "top_k": top_k, "seed": seed}
    given: dict[str, Any] = {name: value for name, value in of_text.items() if value is not None}
    if bool(files) == bool(given) or (given and prompt is None):
        raise click.UsageError("Give FILES, or --prompt TEXT and the options of a text.")
    opened = _open(run)
    if given:
        text = opened.sample(overrides, weights=weights, device=device, changed=changed, **given)
        return Answer({**given, "text": text}, text.rstrip("\n"))
    found = opened.predict(files, overrides, top=top, weights=weights, device=device, changed=changed)
    rows = list[list[str]]()
    for one in found:
        best = ((number if name is None else name, score) for number, name, score in one.best)
        scores = [f"{name} {100 * score:.2f} %" if one.probable else f"{name} {score:.4g}" for name, score in best]
        said = ", ".join(scores) or " ".join(f"{value:.6g}" for value in one.output)
        rows.append([one.file + (f" [{one.index}]" if one.index else ""), said])
    return Answer([one.record() for one in found], "\n".join(aligned(rows)))


@verb()
def export(
    run: RunName,
    *,
    kind: Annotated[Literal["torch-export", "onnx"], Option("For torch, or for others.", names=("--format",))],
    weights: Weights = None,
    changed: Changed = False,
    output: Annotated[Path | None, Option("Default: RUN/network, with a suffix.", "FILE")] = None,
) -> Answer:
    """Write RUN's network as a program. RUN is a name that `runs` prints, a run's directory, or `latest`.

    It takes samples as they are in the data set, normalises them itself, and accepts batches of any size. Its outputs are compared with
    the network's on samples of the training, which the run has kept.
    """
    found = _open(run).export(kind, output, weights=weights, changed=changed)
    return Answer(attrs.asdict(found) | {"file": str(found.file)}, str(found))
