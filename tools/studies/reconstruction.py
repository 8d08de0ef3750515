"""How wrongly stages reconstruct their inputs, with and without predicted forwards, by the depth of the pipeline.

    python -m tools.studies.reconstruction
    python -m tools.studies.reconstruction --text input.txt

A stage reconstructs with the parameters that its backward finds, and the error grows from the head to the first stage. The first command trains
`reversible_chain.toml` in 4, 8 and 12 stages, the second the GPT of `delay_gpt.toml` in six. Each number is the median over the
probed micro-batches of all epochs but the first, in which the learning rate rises, and within an epoch of those for which the deepest
pipeline is full.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import click

from petra_graph.cli.options_and_output import print_table
from tools.studies.delay import SPEC as GPT
from tools.studies.study import Case, Done, Study, series, write_results

CHAIN = "tools/studies/reversible_chain.toml"
STAGES = (4, 8, 12)
FULL = 2 * (max(STAGES) - 1)
"""Micro-batches of an epoch after which each pipeline is full."""
SCHEDULES = ("1f1b", "lockstep")
SGD = ("optimizer.name=sgd", "optimizer.options={lr=0.005, nesterov=false, weight_decay=5e-4}")
ADAM = ("optimizer.name=adam", "optimizer.options={lr=5e-4}")
ADAMW = ("optimizer.name=adamw", "optimizer.options={lr=1e-3, betas=[0.9, 0.99], weight_decay=0.1}")
SHORT = (
    "data.options.samples=1200",
    "lr_schedule.name=constant",
    "lr_schedule.warmup_epochs=1",
    "run.epochs=3",
    "probe.per_epoch=6",
)
"""Of the GPT: 100 micro-batches an epoch."""
_METRIC = "probe/reconstruction_error/stage-"


@click.command()
@click.option(
    "--text", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Train the GPT on this text."
)
@click.option("--jobs", default=1, show_default=True, help="Runs at a time, of one thread each.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs/reconstruction"),
    show_default=True,
    help="Folder of the runs and of the results.",
)
def main(text: Path | None, jobs: int, output: Path) -> None:
    if text is None:
        study = Study(spec=CHAIN, overrides=(), output=output, jobs=jobs)
        cases = dict(chains())
    else:
        study = Study(spec=GPT, overrides=(*SHORT, f"data.options.root={text.resolve()}"), output=output, jobs=jobs)
        cases = dict(gpts())
    done = study.carry_out([case for pair in cases.values() for case in pair])
    found = {name: tuple(described(done[case.name]) for case in pair) for name, pair in cases.items()}
    name = "reconstruction-chain" if text is None else "reconstruction-gpt"
    results = {key: {"without": without, "predicted": predicted} for key, (without, predicted) in found.items()}
    write_results(output, name, {**study.facts(), "median relative error by stage": results})
    print_table([("", "stage", "without", "predicted", "ratio"), *rows(results)])


def chains() -> Iterator[tuple[str, tuple[Case, Case]]]:
    """Yield the cases of the chain by the names of their rows, each without and with prediction."""
    for optimizer, schedule, stages in product((SGD, ADAM), SCHEDULES, STAGES):
        yield from _pair(f"{stages} stages", optimizer, schedule, f"graph.node.1.repeat={stages - 2}")


def gpts() -> Iterator[tuple[str, tuple[Case, Case]]]:
    for schedule in SCHEDULES:
        yield from _pair("GPT", ADAMW, schedule)


def _pair(network: str, optimizer: Sequence[str], schedule: str, *more: str) -> Iterator[tuple[str, tuple[Case, Case]]]:
    name = f"{network}, {optimizer[0].removeprefix('optimizer.name=')}, {schedule}"
    without, predicted = (
        Case(
            name=f"{name.replace(', ', '-').replace(' ', '-')}{'-predicted' * predict}",
            overrides=(
                *more,
                *optimizer,
                f"method.schedule={schedule}",
                f"optimizer.delay.predict={json.dumps(predict)}",
            ),
        )
        for predict in (False, True)
    )
    yield name, (without, predicted)


def described(done: Done) -> dict[str, Any]:
    """Return the errors of a run by stage, and the loss of its last epoch's evaluation."""
    lines = (done.directory / "metrics.jsonl").read_text().splitlines()
    return {"stages": errors(map(json.loads, lines)), "test loss": series(done.directory, "test/loss")[-1]}


def errors(events: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """Return the median error of each stage, over epochs from the second on and micro-batches of a full pipeline."""
    epoch_steps = 0
    found: dict[int, list[float]] = defaultdict(list)
    for event in events:
        if event["epoch"] == 1:
            epoch_steps = event["step"]  # of the last event, the evaluation
        elif event["name"].startswith(_METRIC) and event["step"] - (event["epoch"] - 1) * epoch_steps > FULL:
            found[int(event["name"].removeprefix(_METRIC))].append(event["value"])
    return {stage: float(f"{statistics.median(values):.3g}") for stage, values in sorted(found.items())}


def rows(results: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each stage that reconstructs: its error without and with prediction, and their ratio."""
    for name, pair in results.items():
        without, predicted = (pair[key]["stages"] for key in ("without", "predicted"))
        for stage, error in without.items():
            other = predicted[stage]
            yield name, str(stage), f"{error:.2g}", f"{other:.2g}", f"{other / error:.2f}"


if __name__ == "__main__":
    main()
