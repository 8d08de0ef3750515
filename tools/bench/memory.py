"""Predicted against measured peak memory of every stage: bytes of tensors alive at dispatch level on the CPU; 1 is exact.

    python tools/bench/memory.py --write
    python tools/bench/memory.py --allocator --write

`--allocator` compares whole networks on one device with the most that torch's allocator handed out, by the profiler's memory
events: what kernels allocate inside themselves is in it, such as convolution_backward's reordered weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

import click
import torch
from attrs import evolve
from network import save
from stage_peaks import StagePeaks
from torch.profiler import ProfilerActivity, profile

from petra_graph.compiler.memory import device_memory, stage_memory
from petra_graph.measure.costs import Conditions, measure_costs
from petra_graph.program.node_costs import CostTable
from petra_graph.runtime.loop import Scheduler
from petra_graph.runtime.stage_io import MicroBatch
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
@click.option("--allocator", is_flag=True, help="Whole networks on one device, against torch's allocator.")
@click.option("--only", default="", help="Only rows with this in their names, as in 'petra 1f1b, batch 4'.")
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
def main(allocator: bool, only: str, write: bool) -> None:
    torch.set_num_threads(1)
    rows = []
    for spec, (method, schedule), batch in product(SPECS, METHODS, (8,) if allocator else (4, 16)):
        name = f"{Path(spec).stem}, {method} {schedule}, batch {batch}"
        if only not in name:
            continue
        ready = prepare(
            spec, (*RANDOM, f"data.batch={batch}", f"method={{ name = '{method}', schedule = '{schedule}' }}")
        )
        rows.append({"case": name, **(allocated if allocator else by_stage)(ready)})
        ratios = rows[-1]["predicted / measured"]
        click.echo(f"{name}: predicted / measured {min(ratios):.4f} to {max(ratios):.4f}")
    click.echo(
        f"largest deviation: {100 * max(abs(one - 1) for row in rows for one in row['predicted / measured']):.3f} %"
    )
    if write:
        click.echo(f"written: {save('allocator_memory' if allocator else 'plan_memory', {'rows': rows})}", err=True)


def by_stage(ready: Prepared) -> dict[str, Any]:
    """Compare each stage, as if on a device of its own."""
    micro_batches = 2 * max(program.depth for program in ready.programs) + AFTER_FULL
    predicted = [stage.total for stage in stage_memory(ready.programs, costs_of(ready), micro_batches=micro_batches)]
    peaks = StagePeaks(ready.executors())
    with peaks:
        Scheduler(peaks.executors).train(data(ready, micro_batches), range(micro_batches), lambda _: None)
    return compared(predicted, [peaks.total[program.index] for program in ready.programs])


def allocated(ready: Prepared) -> dict[str, Any]:
    """Compare the whole network with what the allocator handed out."""
    programs = [evolve(one, device="cpu") for one in ready.programs]
    micro_batches = max(program.depth for program in programs) + AFTER_FULL
    predicted = device_memory(programs, costs_of(ready), policy="arrival", micro_batches=micro_batches)["cpu"].total
    runtime = Scheduler(ready.executors())
    held = sum(
        tensor.nbytes
        for executor in runtime.executors
        for block in executor.modules.values()
        for tensor in (*block.parameters(), *block.buffers())
    )
    copies = ((samples.clone(), targets.clone()) for samples, targets in data(ready, micro_batches))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        runtime.train(copies, range(micro_batches), lambda _: None)
    return compared([predicted], [held + most_allocated(profiler)])


def most_allocated(profiler: Any) -> int:
    """Return the most bytes that were handed out at once, beside what was there before."""
    events = profiler.profiler.kineto_results.events()
    now = most = 0
    for _, size in sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"):
        now += size
        most = max(most, now)
    return most


def compared(predicted: Sequence[int], measured: Sequence[int]) -> dict[str, Any]:
    ratios = [round(one / found, 5) for one, found in zip(predicted, measured, strict=True)]
    return {"predicted": predicted, "measured": measured, "predicted / measured": ratios}


def data(ready: Prepared, micro_batches: int) -> Iterator[MicroBatch]:
    return islice(cycle(ready.opened.epoch(0)), micro_batches)


def costs_of(ready: Prepared) -> CostTable:
    """Measure what its nodes cost."""
    conditions = Conditions(
        batch=ready.spec.data.batch,
        facts=ready.facts,
        precision=ready.spec.precision,
        loss=ready.training.loss,
        optimizer=ready.training.optimizer,
        clip=ready.spec.optimizer.clip,
    )
    return measure_costs(ready.network.graph, conditions)


if __name__ == "__main__":
    main()
