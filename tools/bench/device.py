"""A GPU at work: seconds of a micro-batch by the clock, seconds of its kernels, and how many are launched.

    python tools/bench/device.py --device cuda:0 --batch 256
    python tools/bench/device.py --batch 4                     the same on a CPU, to see that it works

The same network runs as a plain module under autograd, checkpointed, and in the runtime, in one invocation; read the ratios.

    wall       milliseconds of a micro-batch, the least over the rounds
    kernels    the sum of its kernels' milliseconds on the device: what no host can beat
    launches   kernels and copies of a micro-batch
    peak       the most bytes that torch's allocator handed out for it, beside what lived before
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
import torch
from network import PlainTraining, prepared, runtime_of, save
from torch.profiler import ProfilerActivity, profile

from petra_graph.runtime.stage_io import MicroBatch
from petra_graph.training.prepare import fix_arithmetic

METHODS: Mapping[str, Sequence[str]] = {
    "backprop": ("method.name=backprop", "method.schedule=sequential"),
    "reversible-backprop": ("method.name=reversible-backprop", "method.schedule=sequential"),
    "petra, 1f1b": ("method.name=petra", "method.schedule=1f1b"),
    "petra, 1f1b, two stages": ("method.name=petra", "method.schedule=1f1b", "partition.stages=2"),
}


@click.command()
@click.option("--spec", default="specs/revnet18_cifar10.toml", show_default=True)
@click.option("--device", default="cpu", show_default=True, help="cpu, or a GPU such as cuda:0.")
@click.option("--side", default=32, show_default=True, help="Pixels of an image's side.")
@click.option("--classes", default=10, show_default=True)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="An override of the specification.")
@click.option("--batch", default=256, show_default=True, help="Samples in a micro-batch.")
@click.option("--micro-batches", default=12, show_default=True, help="In one measurement.")
@click.option("--rounds", default=3, show_default=True)
@click.option(
    "--deterministic/--any-kernels", default=True, show_default=True, help="As runs compute, or without that."
)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the result into this file.")
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
def main(
    spec: str,
    device: str,
    side: int,
    classes: int,
    overrides: Sequence[str],
    batch: int,
    micro_batches: int,
    rounds: int,
    deterministic: bool,
    output: Path | None,
    write: bool,
) -> None:
    common = [
        *("data.name=random", f"data.options.shape=[3, {side}, {side}]", f"data.options.classes={classes}"),
        *(f"data.options.train={batch * micro_batches}", f"data.batch={batch}", "data.options.test=8"),
        *("method.accumulation=1", f"partition.devices=['{device}']", *overrides),
    ]
    ready = {name: prepared(spec, *common, *chosen) for name, chosen in METHODS.items()}
    first = ready["backprop"]
    fix_arithmetic(first)
    torch.use_deterministic_algorithms(deterministic)
    data: Sequence[MicroBatch] = ()
    rows: dict[str, Mapping[str, float]] = {}
    precision = first.spec.precision
    for name, one in ready.items():
        runtime = runtime_of(one)
        if not rows:
            data = [each for _, each in zip(range(micro_batches), first.opened.epoch(0), strict=False)]
            plain = PlainTraining(first, runtime, list(data), torch.device(device))
            mixed = torch.autocast(torch.device(device).type, torch.bfloat16, enabled=precision.compute == "bfloat16")
            for label, action in (("plain", plain.train), ("checkpointed", plain.train_checkpointed)):
                with mixed:
                    rows[label] = measured(action, device, micro_batches, rounds)
            del plain
        rows[name] = measured(
            lambda runtime=runtime, data=data: runtime.train(data, range(len(data)), lambda _: None),  # type: ignore[misc]
            device,
            micro_batches,
            rounds,
        )
        del runtime
    result = {
        "spec": Path(spec).name,
        "device": device if device == "cpu" else torch.cuda.get_device_name(device),
        "images": [3, side, side],
        "batch": batch,
        "products": precision.products,
        "deterministic": deterministic,
        "of a micro-batch": rows,
        "speed, plain = 1": {name: round(rows["plain"]["wall"] / row["wall"], 3) for name, row in rows.items()},
        "wall over kernels": {name: round(row["wall"] / row["kernels"], 3) for name, row in rows.items()},
    }
    click.echo(json.dumps(result, indent=2))
    if output:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(result, indent=2) + "\n")
    if write:
        click.echo(f"written: {save('device', result)}", err=True)


def measured(action: Callable[[], None], device: str, micro_batches: int, rounds: int) -> Mapping[str, float]:
    """Return milliseconds, launches and bytes of a micro-batch."""
    action()
    action()
    wait(device)
    seconds = []
    with peak(device) as most:
        for _ in range(rounds):
            began = time.perf_counter()
            action()
            wait(device)
            seconds.append(time.perf_counter() - began)
    activity = ProfilerActivity.CPU if device == "cpu" else ProfilerActivity.CUDA
    with profile(activities=[activity]) as profiler:
        action()
        wait(device)
    if device == "cpu":
        events = [(event.self_cpu_time_total, event.count) for event in profiler.key_averages()]
    else:
        events = [(event.self_device_time_total, event.count) for event in profiler.key_averages()]
        events = [(taken, count) for taken, count in events if taken > 0]
    return {
        "wall": round(1e3 * min(seconds) / micro_batches, 3),
        "kernels": round(1e-3 * sum(taken for taken, _ in events) / micro_batches, 3),
        "launches": round(sum(count for _, count in events) / micro_batches),
        "peak MiB": round(most[0] / 2**20, 1),
    }


@contextmanager
def peak(device: str) -> Iterator[list[int]]:
    """Yield a list that has the most bytes handed out inside, when it is left: 0 on a CPU."""
    most = [0]
    if device == "cpu":
        yield most
        return
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    yield most
    most[0] = torch.cuda.max_memory_allocated(device) - before


def wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
