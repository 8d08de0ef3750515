"""One process: what each way to train a network costs, beside plain autograd, in turns in one invocation; read the ratios.

python tools/bench/one_process.py --spec specs/revnet18_cifar10.toml --set data.name=random --batch 64
python tools/bench/one_process.py --batch 2 --micro-batches 20        the host's cost: tensors so small that arithmetic is none
python tools/bench/one_process.py --spec specs/revnet18_cifar10.toml --device cuda:0 --batch 256 --micro-batches 12

seconds      of a micro-batch, by the clock, and CPU seconds of this process, which other programs disturb less
speed        of each, plain = 1; PETRA adds a forward without a graph, so that its limit is (f1 + b) / (f0 + f1 + b)
kernels      on a GPU: milliseconds of its kernels alone, what no host can beat
dispatched   operations that torch dispatches, or kernels and copies that are launched on a GPU
peak         live tensor bytes on a CPU, beside those before; on a GPU the most that torch's allocator handed out
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import torch
from network import PlainTraining, Train, in_turns, ratio, save, trainer
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from petra_graph.measure.tally import LiveBytes
from petra_graph.runtime.loop import Scheduler
from petra_graph.training.prepare import fix_arithmetic, prepare

METHODS: Mapping[str, Sequence[str]] = {
    "backprop": ("method.name=backprop", "method.schedule=sequential"),
    "reversible-backprop": ("method.name=reversible-backprop", "method.schedule=sequential"),
    "petra, lockstep": ("method.name=petra", "method.schedule=lockstep"),
    "petra, 1f1b": ("method.name=petra", "method.schedule=1f1b"),
    "petra, 1f1b, two stages": ("method.name=petra", "method.schedule=1f1b", "partition.stages=2"),
}


@click.command()
@click.option("--spec", default="specs/quickstart.toml", show_default=True)
@click.option("--device", default="cpu", show_default=True, help="cpu, or a GPU such as cuda:0.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="An override of the specification.")
@click.option("--method", "chosen", multiple=True, type=click.Choice(list(METHODS)), help="Default: all.")
@click.option("--batch", default=2, show_default=True, help="Samples in a micro-batch.")
@click.option("--micro-batches", default=4, show_default=True, help="In one measurement, an update each.")
@click.option("--rounds", default=7, show_default=True, help="Measurements of each; the median ratio counts.")
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the result into this file.")
def main(
    spec: str,
    device: str,
    overrides: Sequence[str],
    chosen: Sequence[str],
    batch: int,
    micro_batches: int,
    rounds: int,
    write: bool,
    output: Path | None,
) -> None:
    torch.set_num_threads(1)
    where = torch.device(device)
    common = (f"data.batch={batch}", "method.accumulation=1", f"partition.devices=['{device}']", *overrides)
    ready = {name: prepare(spec, (*common, *METHODS[name])) for name in chosen or METHODS}
    first = next(iter(ready.values()))
    fix_arithmetic(first)
    data = [pair for _, pair in zip(range(micro_batches), first.opened.epoch(0), strict=False)]
    plain = PlainTraining(first, data, where)
    ways: dict[str, Train] = {"plain": plain.train, "checkpointed": plain.train_checkpointed}
    ways |= {name: trainer(Scheduler(one.executors()), data) for name, one in ready.items()}
    ways["forward without a graph"] = plain.forward_without_graph
    taken = in_turns(ways, rounds, seconds(where), warm_up=2)
    wall, cpu = ({name: [one[which] for one in own] for name, own in taken.items()} for which in (0, 1))
    result = {
        "spec": Path(spec).name,
        "device": device if device == "cpu" else torch.cuda.get_device_name(device),
        "overrides": overrides,
        "batch": batch,
        "rounds": rounds,
        "speed, plain = 1": {name: round(1 / ratio(own, wall["plain"]), 3) for name, own in wall.items()},
        "CPU seconds, plain = 1": {name: round(ratio(own, cpu["plain"]), 3) for name, own in cpu.items()},
        "petra's limit": round(1 / (1 + ratio(wall["forward without a graph"], wall["plain"])), 3),
        "of a micro-batch": {
            name: {"wall, ms": round(1e3 * min(wall[name]) / len(data), 3), **counted(action, where, len(data))}
            for name, action in ways.items()
        },
    }
    click.echo(json.dumps(result, indent=2))
    if output:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(result, indent=2) + "\n")
    if write:
        click.echo(f"written: {save('one_process', result)}", err=True)


def seconds(device: torch.device) -> Callable[[Train], tuple[float, float]]:
    """Return what measures the seconds of a training, by the clock and of the processor."""

    def measure(train: Train) -> tuple[float, float]:
        began, used = time.perf_counter(), time.process_time()
        train()
        wait(device)
        return time.perf_counter() - began, time.process_time() - used

    return measure


class Dispatched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what torch dispatches."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def counted(action: Train, device: torch.device, micro_batches: int) -> dict[str, Any]:
    """Return what a micro-batch dispatches and holds, in a pass for each."""
    if device.type == "cuda":
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            action()
            wait(device)
        events = [event for event in profiler.key_averages() if event.self_device_time_total > 0]
        busy, launches = sum(event.self_device_time_total for event in events), sum(event.count for event in events)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        action()
        peak = torch.cuda.max_memory_allocated(device) - before
        found = {"kernels, ms": round(1e-3 * busy / micro_batches, 3)}
    else:
        with Dispatched() as dispatched:
            action()
        with LiveBytes() as live:
            action()
        launches, peak, found = dispatched.count, live.peak, {}
    return {**found, "dispatched": round(launches / micro_batches), "peak, MiB": round(peak / 2**20, 1)}


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
