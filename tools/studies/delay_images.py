"""What corrections of the delay are worth for a network with batch normalisation: RevNet18 of width 16, CIFAR-10's images.

    python -m tools.studies.delay_images search ~/data/cifar10-images
    python -m tools.studies.delay_images seeds ~/data/cifar10-images --row backprop --row sgd --row muon
    python -m tools.studies.delay_images probe ~/data/cifar10-images --row sgd --row muon

An update a micro-batch, in ten stages under 1f1b, so that the first stage's gradients are 9 updates late. `search` trains every row for an
epoch, with a schedule of its own, on nine tenths of the training images, and chooses the learning rate by the loss on the other tenth. It
begins with three rates, and tries further ones until a higher and a lower one are worse. `seeds` trains rows at these rates for ten epochs, with the test images. `probe`
repeats the search's epoch at these rates, and says how like their gradients are to those of backpropagation.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from attrs import frozen

from petra_graph.cli.options_and_output import print_table
from tools.studies.delay import BACKPROP, DISCREPANCY, MUON, PREDICT, SPIKE, output_option, spread, written
from tools.studies.study import Case, Study, series, write_results

SPEC = "specs/revnet18_quarter_cifar10_images.toml"
COMMON = ("method.accumulation=1", "lr_schedule.scaling=none")
EPOCHS = 10
HELD_OUT = "data.options.test_share=0.1"

FIRST_RATES = {"sgd": (0.00625, 0.0125, 0.025), "muon": (0.0005, 0.001, 0.002)}
BY_DELAY = "lr_schedule.delay_epochs={quarter:g}"
"""A quarter of the training, as in the study of the GPT."""
ROWS: Mapping[str, Sequence[str]] = {
    "backprop": BACKPROP,
    "sgd": (),
    "pipedream": ("method.name=pipedream", "method.schedule=1f1b"),
    "pipedream lockstep": ("method.name=pipedream", "method.schedule=lockstep"),
    "spike": (SPIKE,),
    "predict": (PREDICT,),
    "predict rate by delay": (PREDICT, BY_DELAY),
    "discrepancy rate by delay": (DISCREPANCY, BY_DELAY),
    "muon": (MUON,),
    "muon backprop": (MUON, *BACKPROP),
}

STAGES = [f"stage-{number:02}" for number in range(1, 11)]
EACH_EPOCH = "test accuracy after each epoch, %"
BY_STAGE = "means over an epoch after its warm-up, by stage"
PROBED = {"cosine to end-to-end": "cosine_to_end_to_end", "reconstruction error": "reconstruction_error"}
LOOKS = 40
WARM_UP = LOOKS // 10
"""Looks of the warm-up."""
SEARCH = "held-out loss and accuracy after one epoch, nats and %"


@frozen(kw_only=True)
class Setting:
    """A row at a learning rate."""

    row: str
    rate: float

    @property
    def name(self) -> str:
        return f"{self.row.replace(' ', '-')}-lr{self.rate:g}"

    def overrides(self, epochs: int) -> tuple[str, ...]:
        """Return what sets it in a training of some epochs, a tenth of which is the warm-up."""
        settings = (*ROWS[self.row], f"run.epochs={epochs}", f"lr_schedule.warmup_epochs={epochs / 10:g}")
        return (*(text.format(quarter=epochs / 4) for text in settings), f"optimizer.options.lr={self.rate:g}")


def rows_option(command: Any) -> Any:
    return click.option("--row", "rows", multiple=True, type=click.Choice(list(ROWS)), help="Rows; default: all.")(
        command
    )


@click.group()
def main() -> None: ...


@main.command()
@click.argument("images", type=click.Path(exists=True, file_okay=False, path_type=Path))
@rows_option
@output_option("delay-images")
def search(images: Path, rows: Sequence[str], output: Path, jobs: int) -> None:
    """Try each row at several learning rates for an epoch; write search.json."""
    study = _study(images / "train", (HELD_OUT,), output, jobs)
    results = written(output / "search.json", SEARCH)
    for row, found in searched(study, rows or list(ROWS)).items():
        results[row] = {f"lr {rate:g}": values for rate, values in sorted(found.items())}
    write_results(output, "search", {**study.facts(), SEARCH: results})
    print_table([
        (row, ", ".join(f"{rate}: {loss:.3f}, {accuracy:.2f} %" for rate, (loss, accuracy) in found.items()))
        for row, found in results.items()
    ])  # fmt: skip


def searched(study: Study, rows: Sequence[str]) -> dict[str, dict[float, list[float]]]:
    """Return the loss and the accuracy of each row at each rate that was tried."""
    found: dict[str, dict[float, list[float]]] = {row: {} for row in rows}
    wanted = [
        Setting(row=row, rate=rate) for row in rows for rate in FIRST_RATES["muon" if MUON in ROWS[row] else "sgd"]
    ]
    while wanted:
        cases = {one: Case(name=f"search/{one.name}", overrides=one.overrides(1)) for one in wanted}
        done = study.carry_out(list(cases.values()))
        for one, case in cases.items():
            ended = done[case.name]
            found[one.row][one.rate] = [series(ended.directory, "test/loss")[-1], ended.accuracies()[-1]]
        wanted = [Setting(row=row, rate=rate) for row in rows for rate in _beyond(found[row])]
    return found


def _beyond(found: Mapping[float, Sequence[float]]) -> list[float]:
    """Return the rate next to the best one that was not tried, if that is the least or the greatest."""
    best = best_rate(found)
    return [best / 2] if best == min(found) else [best * 2] if best == max(found) else []


def best_rate(found: Mapping[float, Sequence[float]]) -> float:
    return min(found, key=lambda rate: found[rate][0])


@main.command()
@click.argument("images", type=click.Path(exists=True, file_okay=False, path_type=Path))
@rows_option
@click.option("--seeds", "count", default=3, show_default=True, help="Seeds 0, 1, ... of each.")
@output_option("delay-images")
def seeds(images: Path, rows: Sequence[str], count: int, output: Path, jobs: int) -> None:
    """Train rows at the rates that `search` chose; write seeds.json after each seed."""
    study, chosen = _study(images, (), output, jobs), rates(output, rows)
    for seed in range(count):
        cases = {
            row: Case(
                name=f"seeds/{Setting(row=row, rate=rate).name}-seed{seed}",
                overrides=(*Setting(row=row, rate=rate).overrides(EPOCHS), f"run.seed={seed}"),
            )
            for row, rate in chosen.items()
        }
        done = study.carry_out(list(cases.values()))
        results = written(output / "seeds.json", EACH_EPOCH)
        for row, case in cases.items():
            each = results.setdefault(row, {"lr": chosen[row]})
            each[f"seed {seed}"] = done[case.name].accuracies()
            each |= spreads([values for key, values in each.items() if key.startswith("seed")])
        write_results(output, "seeds", {**study.facts(), EACH_EPOCH: results})
    print_table([(row, _shown(one)) for row, one in results.items()])


@main.command()
@click.argument("images", type=click.Path(exists=True, file_okay=False, path_type=Path))
@rows_option
@output_option("delay-images")
def probe(images: Path, rows: Sequence[str], output: Path, jobs: int) -> None:
    """Compare rows' gradients with end-to-end ones over the epoch of `search`, by stage; write probe.json after each row."""
    study, found = _study(images / "train", (HELD_OUT,), output, jobs), written(output / "probe.json", BY_STAGE)
    for row, rate in rates(output, rows).items():
        one = Setting(row=row, rate=rate)
        case = Case(name=f"probe/{one.name}", overrides=(*one.overrides(1), f"probe.per_epoch={LOOKS}"))
        run = study.carry_out([case])[case.name].directory
        found[row] = {"lr": rate, **{name: by_stage(run, metric) for name, metric in PROBED.items()}}
        write_results(output, "probe", {**study.facts(), BY_STAGE: found})
    print_table([
        (row, name, *(f"{values[stage]:.2f}" if stage in values else "" for stage in STAGES))
        for row, one in found.items()
        for name, values in one.items()
        if name in PROBED
    ])  # fmt: skip


def by_stage(run: Path, metric: str) -> dict[str, float]:
    """Return the mean of a metric of the probe over the looks after the warm-up, for each stage that has it."""
    found = {stage: series(run, f"probe/{metric}/{stage}")[WARM_UP:] for stage in STAGES}
    return {stage: round(statistics.mean(values), 4) for stage, values in found.items() if values}


def rates(output: Path, rows: Sequence[str]) -> dict[str, float]:
    """Return the learning rates that `search` chose; of all rows that it has, where none are named."""
    found = written(output / "search.json", SEARCH)
    if missing := [row for row in rows if row not in found]:
        raise click.ClickException(f"{output / 'search.json'} has no {', '.join(missing)}: `search` these rows first")
    return {row: best_rate({float(key.split()[1]): one for key, one in found[row].items()}) for row in rows or found}


def spreads(seeds: Sequence[Sequence[float]]) -> dict[str, list[Any]]:
    """Return the mean and the standard deviation after each epoch; of one seed, None for the latter."""
    found = [spread(values) for values in zip(*seeds, strict=True)]
    return {key: [one[key] for one in found] for key in ("mean", "standard deviation")}


def _shown(row: Mapping[str, Any]) -> str:
    count = sum(key.startswith("seed") for key in row)
    return f"{row['mean'][-1]:.2f} % (standard deviation {row['standard deviation'][-1]}, {count} seeds)"


def _study(root: Path, overrides: Sequence[str], output: Path, jobs: int) -> Study:
    where = f"data.options.root={root.resolve()}"
    return Study(spec=SPEC, overrides=(where, *COMMON, *overrides), output=output, jobs=jobs)


if __name__ == "__main__":
    main()
