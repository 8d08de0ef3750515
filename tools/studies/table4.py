"""The paper's Table 4: what delay, stored inputs and stored parameters each do to the accuracy, at k = 1.

    python -m tools.studies.table4                                    # two minutes, handwritten digits
    python -m tools.studies.table4 --size small --seeds 2 --jobs 2 \
        --set data.options.root=~/data/cifar10-images                 # an hour and a half on two cores
    python -m tools.studies.table4 --size paper --set data.name=cifar100 --set architecture.options.classes=100

Five rows: plain backpropagation, and the four delayed methods under the paper's lockstep. Same micro-batch, epochs and
learning rate for all.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import click

from petra_graph.cli.options_and_output import print_table
from tools.studies.study import Case, Done, Study, study_options, write_results

# row: delayed, input buffer, parameter buffer, as the paper's table has them
ROWS = {
    "backprop": ("no", "-", "-"),
    "pipedream": ("yes", "yes", "yes"),
    "dsp": ("yes", "yes", "no"),
    "delayed-reconstructed": ("yes", "no", "yes"),
    "petra": ("yes", "no", "no"),
}


@click.command()
@study_options("table4")
def main(size: str, spec: str | None, overrides: tuple[str, ...], seeds: int, jobs: int, output: Path) -> None:
    """Train the five rows of Table 4, and write table4.json to --output."""
    study = Study.of(size, spec, overrides, output, jobs)
    cases = {(method, seed): _case(method, seed) for seed in range(seeds) for method in ROWS}
    done = study.carry_out(list(cases.values()))
    rows = [_row(method, [done[cases[method, seed].name] for seed in range(seeds)]) for method in ROWS]
    write_results(output, "table4", {**study.facts(), "accumulation": 1, "seeds": seeds, "rows": rows})
    spreads = ["" if row["standard deviation"] is None else f"sd {row['standard deviation']:.2f}" for row in rows]
    print_table([(row["method"], f"{row['mean']:.2f} %", sd) for row, sd in zip(rows, spreads, strict=True)])


def _case(method: str, seed: int) -> Case:
    schedule = "sequential" if method == "backprop" else "lockstep"
    settings = (f"method.name={method}", f"method.schedule={schedule}", "method.accumulation=1", f"run.seed={seed}")
    return Case(name=f"{method}-{schedule}-k1-seed{seed}", overrides=settings)


def _row(method: str, runs: list[Done]) -> dict[str, Any]:
    delayed, inputs, parameters = ROWS[method]
    last = [run.accuracies()[-1] for run in runs]
    return {
        "method": method,
        "delayed": delayed,
        "input buffer": inputs,
        "parameter buffer": parameters,
        "mean": round(statistics.mean(last), 2),
        "standard deviation": round(statistics.stdev(last), 2) if len(last) > 1 else None,
        "each": [round(value, 2) for value in last],
        "test accuracy by epoch, %": [run.accuracies() for run in runs],
    }


if __name__ == "__main__":
    main()
