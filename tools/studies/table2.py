"""The paper's Table 2 for CIFAR-10, in fewer epochs: RevNet18 at full width, by backpropagation and by PETRA.

    python -m tools.studies.table2 predict ~/data --device-type h100       # samples/s and seconds of each row, before it runs
    python -m tools.studies.table2 train ~/data --epochs 30 --jobs 3 --minutes 9
    python -m tools.studies.table2 train ~/data --epochs 30 --jobs 3 --minutes 9 --accumulation 1

~/data holds the published files of CIFAR-10. The recipe is the paper's (section 4.1), with its warm-up of 5 of 300 epochs and its milestones at 150 and 225 scaled to --epochs. Rows
are trained in the order in which they teach most: what PETRA loses to backpropagation of the same network, then what the corrections
of its delay give back, then the paper's baselines. `train` stops after --minutes, in the middle of a row if need be; the next call
continues each row from its last epoch. table2.json has metrics alone, so it is small enough to be sent home from a borrowed machine.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from attrs import frozen

from petra_graph.cli.options_and_output import print_table
from tools.studies.delay import BACKPROP, MUON
from tools.studies.study import Case, Study, series, write_results

PAPER_EPOCHS, PAPER_WARM_UP, PAPER_MILESTONES = 300, 5, (150, 225)
BASELINE = (*BACKPROP, "data.batch=128")
"""The paper's baselines: an update after each 128 samples."""
DELAY_EPOCHS = "lr_schedule.delay_epochs={quarter:g}"
"""A quarter of the training, as the study of delay recommends."""
PREDICTED = (
    "optimizer.name=corrected",
    *(f"optimizer.options.{one}" for one in ("optimizer=sgd", "lr=0.1", "momentum=0.9", "nesterov=true")),
    *("optimizer.options.weight_decay=5e-4", "optimizer.options.predict=true"),
)
"""The recipe's SGD, with predicted forwards."""
MUON_RATE = "optimizer.options.lr=0.02"


@frozen(kw_only=True)
class Row:
    """A network and how it is trained."""

    overrides: Sequence[str]
    network: str = "revnet18"
    baseline: bool = False
    """It has the paper's own batch, whatever the accumulation of the others."""


ROWS: Mapping[str, Row] = {
    "revnet18 backprop": Row(overrides=BACKPROP),
    "petra lockstep": Row(overrides=("method.schedule=lockstep",)),
    "petra 1f1b": Row(overrides=("method.schedule=1f1b",)),
    "petra 1f1b predict": Row(overrides=("method.schedule=1f1b", *PREDICTED, DELAY_EPOCHS)),
    "petra 1f1b muon": Row(overrides=("method.schedule=1f1b", MUON, MUON_RATE)),
    "resnet18 baseline": Row(overrides=BASELINE, network="resnet18", baseline=True),
    "revnet18 baseline": Row(overrides=BASELINE, baseline=True),
    "petra 1f1b bfloat16": Row(overrides=("method.schedule=1f1b", "precision.compute=bfloat16")),
}
"""In the order in which they are trained. Lockstep is the paper's schedule; the last row stands beside TF32."""
FIRST = ("revnet18 backprop", "petra lockstep", "petra 1f1b")

EACH_EPOCH = "test accuracy after each epoch, %"


@frozen(kw_only=True)
class Training:
    """A row with everything that its specification needs."""

    row: str
    accumulation: int
    epochs: int
    seed: int = 0

    @property
    def name(self) -> str:
        return f"{self.row.replace(' ', '-')}-k{self.accumulation}-{self.epochs}-epochs-seed{self.seed}"

    @property
    def spec(self) -> str:
        return f"specs/{ROWS[self.row].network}_cifar10.toml"

    @property
    def overrides(self) -> tuple[str, ...]:
        """Return what the row changes in its network's specification."""
        share = self.epochs / PAPER_EPOCHS
        milestones = [round(epoch * share, 3) for epoch in PAPER_MILESTONES]
        return (
            *(text.format(quarter=self.epochs / 4) for text in ROWS[self.row].overrides),
            f"method.accumulation={self.accumulation}",
            f"lr_schedule.warmup_epochs={PAPER_WARM_UP * share:g}",
            f"lr_schedule.options.milestones={milestones}",
            f"run.epochs={self.epochs}",
            f"run.seed={self.seed}",
        )


def trainings(rows: Iterable[str], accumulation: int, epochs: int, seed: int) -> list[Training]:
    return [
        Training(row=row, accumulation=1 if ROWS[row].baseline else accumulation, epochs=epochs, seed=seed)
        for row in rows
    ]


def common_options(command: Any) -> Any:
    for option in reversed((
        click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path)),
        click.option("--row", "rows", multiple=True, type=click.Choice(list(ROWS)), help="Rows; default: the first three."),
        click.option("--all-rows", is_flag=True, help="All rows."),
        click.option("--epochs", default=30, show_default=True),
        click.option("--accumulation", default=8, show_default=True, help="Micro-batches of 64 samples an update."),
        click.option("--set", "overrides", multiple=True, help="An override of all rows, as in --set architecture.options.width=0.25."),
        click.option("--output", type=click.Path(file_okay=False, path_type=Path), default=Path("runs/table2"), show_default=True),
    )):  # fmt: skip
        command = option(command)
    return command


@click.group()
def main() -> None: ...


@main.command()
@common_options
@click.option("--device-type", help="A type of device as in partition.device_type; default: that of this machine.")
@click.option("--profile", help="A profile of `petra-graph profile`, for the rows that it is of.")
def predict(
    data: Path,
    rows: Sequence[str],
    all_rows: bool,
    epochs: int,
    accumulation: int,
    overrides: Sequence[str],
    output: Path,
    device_type: str | None,
    profile: str | None,
) -> None:
    """Plan each row on one device, and write predicted.json to --output."""
    machine = [f"partition.device_type={device_type}"] if device_type else []
    machine += [f"partition.profile={profile}"] if profile else []
    found = {}
    for one in trainings(_rows(rows, all_rows), accumulation, epochs, seed=0):
        settings = [f"data.options.root={data}", *overrides, *one.overrides, *machine]
        command = [sys.executable, "-m", "petra_graph", "plan", one.spec, "--json"]
        planned = subprocess.run(
            [*command, *(word for text in settings for word in ("--set", text))], stdout=subprocess.PIPE, check=False
        )
        if planned.returncode:
            raise click.ClickException(f"{one.row} cannot be planned")
        document = json.loads(planned.stdout)
        found[one.row] = {
            "samples/s": round(document["timing"]["samples_per_second"]),
            "seconds": round(document["run"]["seconds"]),
            "MiB": round(document["totals"]["bytes"]["total"] / 2**20),
        }
    write_results(output, "predicted", {"epochs": epochs, "accumulation": accumulation, "overrides": [*overrides, *machine], "rows": found})  # fmt: skip
    print_table([(row, *(f"{value:,} {name}" for name, value in values.items())) for row, values in found.items()])


@main.command()
@common_options
@click.option("--seeds", default=1, show_default=True, help="Seeds 0, 1, ... of each row.")
@click.option(
    "--jobs",
    default=1,
    show_default=True,
    help="Trainings at a time, each a process with one thread; a GPU holds several of them.",
)
@click.option("--minutes", type=float, help="Stop then; the next call continues.")  # fmt: skip
def train(
    data: Path,
    rows: Sequence[str],
    all_rows: bool,
    epochs: int,
    accumulation: int,
    overrides: Sequence[str],
    output: Path,
    seeds: int,
    jobs: int,
    minutes: float | None,
) -> None:
    """Train rows, a seed after the other; write table2.json to --output after each seed."""
    until = None if minutes is None else time.monotonic() + 60 * minutes
    root = f"data.options.root={data.resolve()}"
    failed = []
    for seed in range(seeds):
        wanted = trainings(_rows(rows, all_rows), accumulation, epochs, seed)
        for spec in dict.fromkeys(one.spec for one in wanted):
            study = Study(spec=spec, overrides=(root, *overrides), output=output, jobs=jobs, until=until)
            cases = {Case(name=one.name, overrides=one.overrides): one for one in wanted if one.spec == spec}
            try:
                study.carry_out(list(cases))
            except click.ClickException as error:
                failed.append(error.message)
            _add(output, study, cases)
    found = json.loads((output / "table2.json").read_text())["rows"]
    for (row, count), points in gaps(found).items():
        click.echo(f"{row}, k = {count}: {points:+.2f} points lost to {FIRST[0]}")
    if failed:
        raise click.ClickException("\n".join(failed))


def _rows(rows: Sequence[str], all_rows: bool) -> Sequence[str]:
    return list(ROWS) if all_rows else [row for row in ROWS if row in (rows or FIRST)]


def _add(output: Path, study: Study, cases: Mapping[Case, Training]) -> None:
    """Add what these cases have so far to table2.json, and print it."""
    path = output / "table2.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else {}
    for case, one in cases.items():
        if (run := study.latest_run(case)) is None:
            continue
        summary = json.loads(file.read_text()) if (file := run / "summary.json").exists() else {}
        rows[one.name] = {
            "row": one.row,
            "accumulation": one.accumulation,
            "epochs": one.epochs,
            "seed": one.seed,
            "command": " ".join(("petra-graph run", one.spec, *(f"--set '{text}'" for text in one.overrides))),
            "status": summary.get("status", "stopped"),
            "seconds": summary.get("seconds", {}).get("training"),
            "samples/s": summary.get("samples_per_second"),
            EACH_EPOCH: series(run, "test/top1", 100),
            "training loss": series(run, "train/loss"),
        }
    write_results(output, "table2", {**study.facts(), "rows": rows})
    print_table([
        (name, row["status"], f"{len(row[EACH_EPOCH])} of {row['epochs']} epochs", "".join(f"{value:.2f} %" for value in row[EACH_EPOCH][-1:]))
        for name, row in rows.items()
    ])  # fmt: skip


def gaps(rows: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, int], float]:
    """Return what each row of PETRA loses to backpropagation of the same network, epochs and accumulation, in points: a mean over its seeds."""
    last = {
        (row["row"], row["accumulation"], row["epochs"], row["seed"]): row[EACH_EPOCH][-1]
        for row in rows.values()
        if row["status"] == "done"
    }
    found: dict[tuple[str, int], list[float]] = {}
    for (row, accumulation, epochs, seed), accuracy in last.items():
        best = last.get((FIRST[0], accumulation, epochs, seed))
        if row.startswith("petra") and best is not None:
            found.setdefault((row, accumulation), []).append(best - accuracy)
    return {key: round(statistics.mean(values), 2) for key, values in found.items()}


if __name__ == "__main__":
    main()
