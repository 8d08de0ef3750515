"""A specification under several seeds and variants: means and spreads of the test accuracy.

    python -m tools.studies.seeds specs/quickstart.toml --seeds 5 --variant "" --variant "method.name=backprop"

A variant is a list of KEY=VALUE, separated by blanks.
"""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import click

from petra_graph.cli.options_and_output import print_table
from tools.studies.study import Case, Study, write_results


@click.command()
@click.argument("spec")
@click.option("--seeds", default=5, show_default=True, help="Seeds 0, 1, ... of each variant.")
@click.option("--variant", "variants", multiple=True, required=True, help="Overrides, separated by blanks.")
@click.option("--set", "overrides", multiple=True, help="An override of all variants.")
@click.option("--jobs", default=1, show_default=True, help="Runs at a time, of one thread each.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs/seeds"),
    show_default=True,
    help="Folder of the runs and of seeds.json.",
)
def main(spec: str, seeds: int, variants: tuple[str, ...], overrides: tuple[str, ...], jobs: int, output: Path) -> None:
    study = Study(spec=spec, overrides=overrides, output=output, jobs=jobs)
    cases = {(variant, seed): _case(variant, seed) for variant in variants for seed in range(seeds)}
    done = study.carry_out(list(cases.values()))
    spreads = {
        variant or "as it is": _spread([done[cases[variant, seed].name].accuracies()[-1] for seed in range(seeds)])
        for variant in variants
    }
    write_results(output, "seeds", {**study.facts(), "test accuracy, %": spreads})
    print_table([(name, f"{spread['mean']:.2f} %", f"each {spread['each']}") for name, spread in spreads.items()])


def _case(variant: str, seed: int) -> Case:
    name = re.sub(r"[^\w.=-]+", "-", variant) or "as-it-is"
    return Case(name=f"{name}-seed{seed}", overrides=(*variant.split(), f"run.seed={seed}"))


def _spread(values: list[float]) -> dict[str, object]:
    return {
        "mean": round(statistics.mean(values), 2),
        "standard deviation": round(statistics.stdev(values), 2) if len(values) > 1 else None,
        "each": [round(value, 2) for value in values],
    }


if __name__ == "__main__":
    main()
