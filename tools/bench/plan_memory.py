"""Predicted against measured peak memory, stage by stage.

Measured are the bytes of tensors alive at dispatch level on the CPU, each stage as if on a device of its own
(`stage_peaks`); predicted is `petra_graph.compiler.memory.pipeline_memory`. Read the ratios: 1 is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import click
import torch
from network import costs_of, prepared, save, stage_peaks

from petra_graph.compiler.memory.pipeline_memory import stage_memory

HERE = Path(__file__).parent
NETWORKS = {
    "RevNet18, CIFAR-10's size": ("specs/revnet18_cifar10.toml", (4, 8)),
    "24 narrow reversible blocks": (str(HERE / "deep_narrow_revnet.toml"), (4, 16)),
}
PIPELINED = list(product(("pipedream", "dsp", "delayed-reconstructed", "petra"), ("lockstep", "1f1b")))
SEQUENTIAL = [("backprop", "sequential"), ("reversible-backprop", "sequential")]
AFTER_FULL = 3
"""Micro-batches after the pipeline is full and each in flight has seen parameters of its own."""
RANDOM = ("data.name=random", "data.options.shape=[3, 32, 32]", "data.options.classes=10", "data.options.train=1024")


@click.command()
@click.option("--threads", default=1, show_default=True)
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
def main(threads: int, write: bool) -> None:
    torch.set_num_threads(threads)
    rows = []
    for row in _rows():
        rows.append(row)
        ratios = row["predicted / measured"]
        click.echo(
            f"{row['network']:28} {row['method']:22} {row['schedule']:10} batch {row['batch']:3}  "
            f"{sum(row['measured']) / 2**20:8.1f} MiB  ratios {min(ratios):.4f} to {max(ratios):.4f}"
        )
    worst = max(abs(ratio - 1) for row in rows for ratio in row["predicted / measured"])
    click.echo(f"largest deviation of any stage: {100 * worst:.3f} %")
    if write:
        click.echo(f"written: {save('plan_memory', {'largest deviation': worst, 'rows': rows})}", err=True)


def _rows() -> Iterator[dict[str, Any]]:
    for network, (spec, batches) in NETWORKS.items():
        for batch, (method, schedule) in product(batches, (*PIPELINED, *SEQUENTIAL)):
            chosen = (f"method.name={method}", f"method.schedule={schedule}", "method.accumulation=1")
            ready = prepared(spec, *RANDOM, f"data.batch={batch}", *chosen)
            programs = ready.programs
            micro_batches = 2 * max(program.depth for program in programs) + AFTER_FULL
            predicted = stage_memory(programs, costs_of(ready), micro_batches=micro_batches)
            measured = stage_peaks(ready, micro_batches)
            yield {
                "network": network,
                "method": method,
                "schedule": schedule,
                "batch": batch,
                "predicted": [stage.total for stage in predicted],
                "measured": list(measured),
                "predicted / measured": [
                    round(stage.total / found, 5) for stage, found in zip(predicted, measured, strict=True)
                ],
            }


if __name__ == "__main__":
    main()
