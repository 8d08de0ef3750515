"""Predicted against measured peak memory, stage by stage or, with `--shared`, of devices that host several stages.

Measured are the bytes of tensors alive at dispatch level on the CPU, each stage as if on a device of its own, or the stages
of a device together (`stage_peaks`); predicted is `petra_graph.compiler.memory`. Read the ratios: 1 is exact.
Of shared devices, the sum of the stages' own peaks stands beside, over what was measured.

--allocator  whole networks on one device, against the most that torch's allocator handed out, by the profiler's memory events:
             what kernels allocate inside themselves is in it, such as convolution_backward's reordered weights
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, get_args

import click
import torch
from attrs import evolve
from network import costs_of, device_peaks, prepared, save, stage_peaks, training_data
from torch.profiler import ProfilerActivity, profile

from petra_graph.compiler.memory import device_memory, stage_memory
from petra_graph.measure.tally import storages
from petra_graph.program.method import METHODS
from petra_graph.program.placement import Partition, Stage
from petra_graph.program.schedule import Policy
from petra_graph.runtime.loop import Scheduler
from petra_graph.training.prepare import Prepared

HERE = Path(__file__).parent
NETWORKS = {
    "RevNet18, CIFAR-10's size": ("specs/revnet18_cifar10.toml", (4, 8)),
    "24 narrow reversible blocks": (str(HERE / "deep_narrow_revnet.toml"), (4, 16)),
}
PIPELINED = list(product(("pipedream", "dsp", "delayed-reconstructed", "petra"), ("lockstep", "1f1b")))
SEQUENTIAL = [("backprop", "sequential"), ("reversible-backprop", "sequential")]
AFTER_FULL = 3
"""Micro-batches after the pipeline is full and each in flight has seen parameters of its own."""
SHARED_NETWORKS = {"quickstart": ("specs/quickstart.toml", (32,)), **NETWORKS}
WHOLE = {
    "RevNet18, CIFAR-10's size": "specs/revnet18_cifar10.toml",
    "ResNet18, CIFAR-10's size": "specs/resnet18_cifar10.toml",
    "24 narrow reversible blocks": str(HERE / "deep_narrow_revnet.toml"),
}
INSIDE = "aten::convolution_backward"
DEVICES = (1, 2, 3)
WINDOW = 4
"""Micro-batches in an update of the methods that flush."""
RANDOM = ("data.name=random", "data.options.shape=[3, 32, 32]", "data.options.classes=10", "data.options.train=1024")


@click.command()
@click.option("--threads", default=1, show_default=True)
@click.option("--shared", is_flag=True, help="Devices that host several stages, instead of stages.")
@click.option("--allocator", is_flag=True, help="Whole networks on one device, against torch's allocator.")
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
def main(threads: int, shared: bool, allocator: bool, write: bool) -> None:
    torch.set_num_threads(threads)
    rows = []
    if allocator:
        for row in _allocated_rows():
            rows.append(row)
            click.echo(row)
        if write:
            click.echo(f"written: {save('allocator_memory', {'rows': rows})}", err=True)
        return
    for row in _shared_rows() if shared else _rows():
        rows.append(row)
        ratios = row["predicted / measured"]
        more = ""
        if shared:
            sums = row["sum of stages' peaks / measured"]
            more = f"  on {row['devices']}, {row['policy']:7}; sums of peaks {min(sums):.2f} to {max(sums):.2f}"
        click.echo(
            f"{row['network']:28} {row['method']:22} {row['schedule']:10} batch {row['batch']:3}  "
            f"{sum(row['measured']) / 2**20:8.1f} MiB  ratios {min(ratios):.4f} to {max(ratios):.4f}{more}"
        )
    worst = max(abs(ratio - 1) for row in rows for ratio in row["predicted / measured"])
    click.echo(f"largest deviation of any {'device' if shared else 'stage'}: {100 * worst:.3f} %")
    if write:
        name = "device_memory" if shared else "plan_memory"
        click.echo(f"written: {save(name, {'largest deviation': worst, 'rows': rows})}", err=True)


def _allocated_rows() -> Iterator[dict[str, Any]]:
    for (network, spec), (method, schedule) in product(WHOLE.items(), (("petra", "1f1b"), ("backprop", "sequential"))):
        chosen = (f"method.name={method}", f"method.schedule={schedule}", "method.accumulation=1", "data.batch=8")
        ready = prepared(spec, *RANDOM, *chosen)
        programs = [evolve(one, device="cpu") for one in ready.programs]
        micro_batches = max(program.depth for program in programs) + AFTER_FULL
        predicted = device_memory(programs, costs_of(ready), policy="arrival", micro_batches=micro_batches)["cpu"].total
        tensors = device_peaks(ready, programs, micro_batches, "arrival")["cpu"]
        allocated, freed = _allocated(ready, micro_batches)
        yield {
            "network": network,
            "method": method,
            "schedule": schedule,
            "predicted": predicted,
            "tensors": tensors,
            "allocated": allocated,
            f"freed inside {INSIDE}": freed,
            "predicted / tensors": round(predicted / tensors, 4),
            "predicted / allocated": round(predicted / allocated, 4),
        }


def _allocated(ready: Prepared, micro_batches: int) -> tuple[int, int]:
    """Return the most bytes of torch's allocator in a training, and the most that one `INSIDE` freed again itself."""
    executors = ready.executors()
    modules = [module for executor in executors for module in executor.modules.values()]
    held = sum(one.nbytes() for module in modules for one in storages([*module.parameters(), *module.buffers()]))
    batches = ((samples.clone(), targets.clone()) for samples, targets in training_data(ready, micro_batches))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        Scheduler(executors).train(batches, range(micro_batches), lambda _: None)
    recorded = profiler.profiler.kineto_results.events()
    marks = [
        mark
        for event in recorded
        for mark in {
            "[memory]": [(event.start_ns(), "memory", event.nbytes())],
            INSIDE: [(event.start_ns(), "begins", 0), (event.end_ns(), "returns", 0)],
        }.get(event.name(), [])
    ]
    most, high, freed = held, held, 0
    for _, what, size in sorted(marks):
        held += size
        most, high = max(most, held), held if what == "begins" else max(high, held)
        if what == "returns":
            freed = max(freed, high - held)
    return most, freed


def _shared_rows() -> Iterator[dict[str, Any]]:
    for network, (spec, batches) in SHARED_NETWORKS.items():
        for method, schedule in ((name, schedule) for name, one in METHODS.items() for schedule in one.schedules):
            if schedule == "auto" or (schedule == "sequential" and len(METHODS[method].schedules) > 1):
                continue
            k = WINDOW if METHODS[method].flush == "window" else 1
            chosen = (f"method.name={method}", f"method.schedule={schedule}", f"method.accumulation={k}")
            data = RANDOM if network in NETWORKS else ()
            ready = prepared(spec, *data, f"data.batch={batches[0]}", *chosen)
            costs = costs_of(ready)
            # Where older parameters are kept, twice as many: each micro-batch in flight may use a version of its own.
            fills = 2 if any(one.backward == "stored" for program in ready.programs for one in program.segments) else 1
            micro_batches = fills * max(program.depth for program in ready.programs) + AFTER_FULL * k
            stages = Partition(stages=tuple(Stage(nodes=one.nodes, device="", distance=0) for one in ready.programs))
            apart = stage_memory(ready.programs, costs, micro_batches=micro_batches)
            for count, policy in product(DEVICES, get_args(Policy)):
                hosts = [stage.device for stage in stages.spread_over([f"d{index}" for index in range(count)]).stages]
                programs = [evolve(one, device=host) for one, host in zip(ready.programs, hosts, strict=True)]
                predicted = device_memory(programs, costs, policy=policy, micro_batches=micro_batches)
                measured = device_peaks(ready, programs, micro_batches, policy)
                sums = {
                    device: sum(stage.total for stage, host in zip(apart, hosts, strict=True) if host == device)
                    for device in measured
                }
                yield {
                    "network": network,
                    "method": method,
                    "schedule": schedule,
                    "batch": batches[0],
                    "devices": count,
                    "policy": policy,
                    "predicted": [predicted[device].total for device in measured],
                    "measured": list(measured.values()),
                    "predicted / measured": [
                        round(predicted[device].total / found, 5) for device, found in measured.items()
                    ],
                    "sum of stages' peaks / measured": [
                        round(sums[device] / found, 3) for device, found in measured.items()
                    ],
                }


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
