"""What corrections of the delay are worth: an update a micro-batch, gradients as late as a pipeline makes them.

    python -m tools.studies.delay search input.txt
    python -m tools.studies.delay stages input.txt

`search` trains the GPT of `delay_gpt.toml` in six stages under 1f1b with each correction, and by backpropagation, at three learning
rates and two scales of the initial vectors alike. It sees the first nine tenths of the text, whose last tenth is what it chooses by. A
training whose loss after the first epoch of four is more than 0.15 nats above the least of its row is ended there. Error feedback, which is
for a delay of one update at most, is searched in two stages. `stages` trains the
best two corrections and both together, the base and backpropagation as `search` chose them, on the whole text with its own test, three
seeds, in two, four and six stages, and in six under `auto` and `lockstep`.
A pipeline that was searched, too (`search --pipeline`), has its own learning rate and scale there; the others have those of six stages.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import click
from attrs import frozen

from petra_graph.cli.options_and_output import print_table
from tools.studies.study import Case, Done, Study, series, write_results

SPEC = "tools/studies/delay_gpt.toml"
RATES = (1e-3, 2e-3, 4e-3)
SCALES = (1.0, 3.0)
MARGIN = 0.15
FIRST_EPOCH = """callback=[{name = "first_epoch:FirstEpochsOptions"}]"""

SEARCHED = "six stages"
"""The pipeline under which `search` chooses for all that were not searched themselves."""
BACKPROP = ("method.name=backprop", "method.schedule=sequential")
CORRECTED = (
    "optimizer.name=corrected",
    "optimizer.options={ optimizer = 'adamw', lr = 1e-3, betas = [0.9, 0.99], weight_decay = 0.1 }",
)
"""The optimizer of delay_gpt.toml, with corrections around it."""
SPIKE, FEEDBACK = (f"optimizer.options.correction={name}" for name in ("spike", "error-feedback"))
PREDICT, DISCREPANCY = (f"optimizer.options.{name}=true" for name in ("predict", "correct_discrepancy"))
NADAM, MUON, SOAP = (f"optimizer.name={name}" for name in ("nadam", "muon", "soap"))
BY_DELAY = "lr_schedule.delay_epochs=1"
ROWS: Mapping[str, Sequence[str]] = {
    "backprop": BACKPROP,
    "adamw": (),
    "adamw beta1 0.5": ("optimizer.options.betas=[0.5,0.99]",),
    "spike": (*CORRECTED, SPIKE),
    "predict": (*CORRECTED, PREDICT),
    "spike predict": (*CORRECTED, SPIKE, PREDICT),
    "nadam 0.99": (NADAM, "optimizer.options.betas=[0.99,0.99]"),
    "nadam by stage": (NADAM, "optimizer.options.beta1_by_stage=true"),
    "rate by delay": (BY_DELAY,),
    "spike rate by delay": (*CORRECTED, SPIKE, BY_DELAY),
    "predict rate by delay": (*CORRECTED, PREDICT, BY_DELAY),
    "discrepancy": (*CORRECTED, DISCREPANCY),
    "discrepancy rate by delay": (*CORRECTED, DISCREPANCY, BY_DELAY),
    "error feedback": (*CORRECTED, FEEDBACK),
    "muon backprop": (MUON, *BACKPROP),
    "muon": (MUON,),
    "muon spike": ("optimizer.name=corrected", "optimizer.options={ optimizer = 'muon' }", SPIKE),
    "soap": (SOAP,),
}

PIPELINES: Mapping[str, Sequence[str]] = {
    "two stages": ("partition.stages=2",),
    "four stages": ("partition.stages=4",),
    "six stages": (),
    "six stages, auto": ("method.schedule=auto", "partition.devices=6"),
    "six stages, lockstep": ("method.schedule=lockstep",),
}

SEARCHED_IN = {"error feedback": "two stages"}
"""The pipeline of a row whose correction does not hold in six stages: error feedback is for a delay of one update at most."""


def searched_as(row: str, pipeline: str) -> str:
    """Name a row's search in search.json."""
    return row if pipeline == SEARCHED else f"{row}, {pipeline}"


def own_pipeline(row: str) -> str:
    """Return the pipeline under which `search` chooses for a row, if no other is asked for."""
    return SEARCHED_IN.get(row, SEARCHED)


def folder(name: str) -> str:
    return name.replace(",", "").replace(" ", "-")


@frozen(kw_only=True)
class Setting:
    """A row at a learning rate and a scale of the initial vectors."""

    row: str
    rate: float
    scale: float
    pipeline: str = SEARCHED

    @property
    def key(self) -> str:
        return f"lr {self.rate:g}, embedding_std {self.scale:g}"

    @property
    def name(self) -> str:
        row = folder(searched_as(self.row, self.pipeline))
        return f"{row}-lr{self.rate:g}-std{self.scale:g}"

    @property
    def overrides(self) -> tuple[str, ...]:
        return (
            *ROWS[self.row],
            *PIPELINES[self.pipeline],
            f"optimizer.options.lr={self.rate:g}",
            f"architecture.options.embedding_std={self.scale:g}",
        )


def pipeline_option(default: str) -> Callable[[Any], Any]:
    return click.option(
        "--pipeline",
        "pipelines",
        multiple=True,
        type=click.Choice(list(PIPELINES)),
        help=f"Pipelines of rows that are no backpropagation; default: {default}, and two stages for a row that holds in no more.",
    )


def output_option(name: str) -> Callable[[Any], Any]:
    where = click.option(
        "--output",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path("runs") / name,
        show_default=True,
        help="Folder of the runs and of the results.",
    )
    jobs = click.option("--jobs", default=1, show_default=True, help="Runs at a time, of one thread each.")
    return lambda command: where(jobs(command))


@click.group()
def main() -> None: ...


@main.command()
@click.argument("text", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--row", "rows", multiple=True, type=click.Choice(list(ROWS)), help="Rows; default: all.")
@pipeline_option("six stages")
@output_option("delay")
def search(text: Path, rows: Sequence[str], pipelines: Sequence[str], output: Path, jobs: int) -> None:
    """Try each correction at each learning rate and scale; write search.json after each row."""
    study = gpt(_beginning(text, output), output, jobs)
    results = written(output / "search.json", "loss after each epoch, nats")
    for row in rows or ROWS:
        for pipeline in pipelines or [own_pipeline(row)]:
            losses_of = searched(study, row, pipeline)
            results[searched_as(row, pipeline)] = {setting.key: losses for setting, losses in losses_of.items()}
            write_results(output, "search", {**study.facts(), "loss after each epoch, nats": results})
    print_table([(row, "  ".join(map(_shown, found.values()))) for row, found in results.items()])


def searched(study: Study, row: str, pipeline: str = SEARCHED) -> dict[Setting, list[float]]:
    """Return the losses after each epoch of all settings of a row; one epoch only, if it ruled the others out."""
    settings = settings_of(row, pipeline)
    first = {one: Case(name=f"first/{one.name}", overrides=(*one.overrides, FIRST_EPOCH)) for one in settings}
    whole = {one: Case(name=f"search/{one.name}", overrides=one.overrides) for one in settings}
    done = study.carry_out(list(first.values()))
    found = {one: losses(done[first[one].name]) for one in settings}
    least = min(values[0] for values in found.values())
    promising = [one for one in settings if found[one][0] <= least + MARGIN]
    done = study.carry_out([whole[one] for one in promising])
    return found | {one: losses(done[whole[one].name]) for one in promising}


@main.command()
@click.argument("text", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--row", "rows", multiple=True, required=True, type=click.Choice(list(ROWS)), help="Rows that are compared."
)
@pipeline_option("all")
@click.option("--seeds", default=3, show_default=True, help="Seeds 0, 1, ... of each.")
@output_option("delay")
def stages(text: Path, rows: Sequence[str], pipelines: Sequence[str], seeds: int, output: Path, jobs: int) -> None:
    """Train the settings that `search` chose under each pipeline; write stages.json after each of them."""
    study, found = gpt(text, output, jobs), written(output / "search.json", "loss after each epoch, nats")
    results = written(output / "stages.json", "test loss, nats")
    for row in rows:
        late = pipelines or ([SEARCHED_IN[row]] if row in SEARCHED_IN else PIPELINES)
        for pipeline in ("one device",) if row.endswith("backprop") else late:
            setting = chosen(row, found, pipeline)
            cases = [
                Case(
                    name=f"stages/{setting.name}-{folder(pipeline)}-seed{seed}",
                    overrides=(*setting.overrides, *PIPELINES.get(pipeline, ()), f"run.seed={seed}"),
                )
                for seed in range(seeds)
            ]
            done = study.carry_out(cases)
            results.setdefault(row, {})[pipeline] = {
                "lr": setting.rate,
                "embedding_std": setting.scale,
                **spread([losses(done[case.name])[-1] for case in cases]),
            }
            write_results(output, "stages", {**study.facts(), "test loss, nats": results})
    print_table([
        (row, pipeline, f"{one['mean']:.3f}", f"{len(one['each'])} seeds")
        for row, found in results.items()
        for pipeline, one in found.items()
    ])  # fmt: skip


def settings_of(row: str, pipeline: str) -> list[Setting]:
    return [Setting(row=row, rate=rate, scale=scale, pipeline=pipeline) for rate, scale in product(RATES, SCALES)]


def chosen(row: str, found: Mapping[str, Mapping[str, Sequence[float]]], pipeline: str = SEARCHED) -> Setting:
    """Return the setting of a row whose training was not ended, and has the least loss after its last epoch."""
    searches = (searched_as(row, one) for one in (pipeline, own_pipeline(row)))
    of = next((found[name] for name in searches if name in found), None)
    if of is None:
        raise click.ClickException(f"search.json has no {row}: `search` this row first")
    whole = [one for one in settings_of(row, SEARCHED) if len(of[one.key]) > 1]
    return min(whole, key=lambda one: of[one.key][-1])


def spread(values: Sequence[float]) -> dict[str, Any]:
    deviation = round(statistics.stdev(values), 4) if len(values) > 1 else None
    return {"mean": round(statistics.mean(values), 4), "standard deviation": deviation, "each": list(values)}


def gpt(text: Path, output: Path, jobs: int) -> Study:
    return Study(spec=SPEC, overrides=(f"data.options.root={text.resolve()}",), output=output, jobs=jobs)


def losses(done: Done) -> list[float]:
    """Return the loss after each epoch, in nats a character; one epoch, where it ruled the rest out."""
    return series(done.directory, "test/loss")


def _beginning(text: Path, output: Path) -> Path:
    """Write the text without its last tenth, which is the test of `stages`; both have all characters."""
    whole = text.read_text()
    path = output / "beginning.txt"
    output.mkdir(parents=True, exist_ok=True)
    path.write_text(whole[: len(whole) - round(0.1 * len(whole))])
    return path


def written(path: Path, key: str) -> dict[str, Any]:
    """Return the rows that were written before."""
    return dict(json.loads(path.read_text())[key]) if path.exists() else {}


def _shown(found: Sequence[float]) -> str:
    return f"{found[-1]:.3f}" if len(found) > 1 else f"ended at {found[0]:.2f}"


if __name__ == "__main__":
    main()
