"""Predicted against measured peak memory of every stage: bytes of tensors alive at dispatch level on the CPU; 1 is exact.

python tools/bench/memory.py --write
"""

from __future__ import annotations

from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

import click
import torch
from network import save
from stage_peaks import StagePeaks

from petra_graph.compiler.memory import MemoryModel
from petra_graph.runtime.loop import Scheduler
from petra_graph.training.prepare import Prepared, prepare

DEEP = str(Path(__file__).parent / "deep_narrow_revnet.toml")
SPECS = ("specs/revnet18_cifar10.toml", DEEP)
METHODS = (
    *product(("pipedream", "dsp", "delayed-reconstructed", "petra"), ("lockstep", "1f1b")),
    *(("backprop", "sequential"), ("reversible-backprop", "sequential")),
)
RANDOM = ("data.name=random", "data.options={ shape = [3, 32, 32], classes = 10, train = 1024 }")
AFTER_FULL = 3
"""Micro-batches after the pipeline is full and each in flight has seen parameters of its own."""


@click.command()
@click.option("--only", default="", help="Only rows with this in their names, as in 'petra 1f1b, batch 4'.")
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
def main(only: str, write: bool) -> None:
    torch.set_num_threads(1)
    rows = []
    for spec, (method, schedule), batch in product(SPECS, METHODS, (4, 16)):
        name = f"{Path(spec).stem}, {method} {schedule}, batch {batch}"
        if only in name:
            how = f"method={{ name = '{method}', schedule = '{schedule}' }}"
            rows.append({"case": name, **by_stage(prepare(spec, (*RANDOM, f"data.batch={batch}", how)))})
            ratios = rows[-1]["predicted / measured"]
            click.echo(f"{name}: predicted / measured {min(ratios):.4f} to {max(ratios):.4f}")
    deviation = max(abs(one - 1) for row in rows for one in row["predicted / measured"])
    click.echo(f"largest deviation: {100 * deviation:.3f} %")
    if write:
        click.echo(f"written: {save('plan_memory', {'rows': rows})}", err=True)


def by_stage(ready: Prepared) -> dict[str, Any]:
    """Compare each stage, as if on a device of its own."""
    count = 2 * max(program.depth for program in ready.programs) + AFTER_FULL
    model = MemoryModel(costs=ready.network.costs(), micro_batches=count)
    predicted = [stage.total for stage in model.apart(ready.programs)]
    peaks = StagePeaks(ready.executors())
    with peaks:
        Scheduler(peaks.executors).train(islice(cycle(ready.opened.epoch(0)), count), range(count), lambda _: None)
    measured = [peaks.total[program.index] for program in ready.programs]
    ratios = [round(one / found, 5) for one, found in zip(predicted, measured, strict=True)]
    return {"predicted": predicted, "measured": measured, "predicted / measured": ratios}


if __name__ == "__main__":
    main()
