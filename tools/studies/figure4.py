"""The paper's Figure 4: accuracy against the accumulation k, for petra and backpropagation.

    python -m tools.studies.figure4                                    # two minutes, handwritten digits
    python -m tools.studies.figure4 --size small --accumulation 1,4,16 --jobs 2 \
        --set data.options.root=~/data/cifar10-images
    python -m tools.studies.figure4 --size paper --accumulation 1,2,4,8,16,32

Staleness in updates falls with k, and so does the number of updates; the learning rate grows with k (Goyal scaling)
where the specification says so. `1f1b` is not in the paper: half the staleness of its lockstep.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import click

from petra_graph.cli.options_and_output import print_table
from tools.studies.drawing import COLOURS, DASHES, figure_of
from tools.studies.study import Case, Study, study_options, write_results

CURVES = {
    "backprop": ("backprop", "sequential"),
    "petra, 1f1b": ("petra", "1f1b"),
    "petra, lockstep": ("petra", "lockstep"),
}


@click.command()
@click.option("--accumulation", default="1,4,16", show_default=True, help="Values of k; the paper has 1 to 32.")
@study_options("figure4")
def main(
    accumulation: str, size: str, spec: str | None, overrides: tuple[str, ...], seeds: int, jobs: int, output: Path
) -> None:
    """Train all curves at all values of k, and write figure4.json and figure4.png to --output."""
    values = _numbers(accumulation)
    study = Study.of(size, spec, overrides, output, jobs)
    cases = {(curve, k, seed): _case(curve, k, seed) for seed in range(seeds) for curve in CURVES for k in values}
    done = study.carry_out(list(cases.values()))
    curves = []
    for curve in CURVES:
        last = [[done[cases[curve, k, seed].name].accuracies() for seed in range(seeds)] for k in values]
        curves.append(
            {
                "curve": curve,
                "accumulation": values,
                "mean": [round(statistics.mean(runs[-1] for runs in at_k), 2) for at_k in last],
                "each": [[round(runs[-1], 2) for runs in at_k] for at_k in last],
                "test accuracy by epoch, %": last,
            }
        )
    write_results(output, "figure4", {**study.facts(), "seeds": seeds, "curves": curves})
    _draw(curves, values, output / "figure4.png")
    rows = [[str(curve["curve"]), *(f"{value:.2f} %" for value in curve["mean"])] for curve in curves]
    print_table([["k", *map(str, values)], *rows])


def _numbers(text: str) -> list[int]:
    try:
        values = sorted({int(part) for part in text.split(",")})
    except ValueError:
        values = []
    if not values or values[0] < 1:
        message = f"--accumulation takes positive numbers, separated by commas, as in 1,4,16 (got {text!r})"
        raise click.UsageError(message)
    return values


def _case(curve: str, k: int, seed: int) -> Case:
    method, schedule = CURVES[curve]
    return Case(
        name=f"{method}-{schedule}-k{k}-seed{seed}",
        overrides=(
            f"method.name={method}",
            f"method.schedule={schedule}",
            f"method.accumulation={k}",
            f"run.seed={seed}",
        ),
    )


def _draw(curves: list[dict[str, Any]], values: list[int], path: Path) -> None:
    with figure_of(path, title="Accuracy against accumulation") as axis:
        for curve, colour, dash in zip(curves, COLOURS, DASHES, strict=False):
            axis.plot(values, curve["mean"], dash, color=colour, marker="o", markersize=4, label=curve["curve"])
            for k, each in zip(values, curve["each"], strict=True):
                if len(each) > 1:
                    axis.plot([k] * len(each), each, ".", color=colour, alpha=0.5)
        axis.set_xscale("log", base=2)
        axis.set_xticks(values, [str(k) for k in values])
        axis.minorticks_off()
        axis.set_xlabel("accumulation k, micro-batches in an update")
        axis.set_ylabel("test accuracy, %")
        axis.legend(frameon=False)


if __name__ == "__main__":
    main()
