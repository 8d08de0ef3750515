"""One process: how far the scheduler is from the arithmetic's own limits.

The same network runs as a plain module under autograd, in turns with the runtime, in one invocation; read the ratios.

    backprop       against the plain module: the runtime's overhead
    petra          against its own limit (f1 + b) / (f0 + f1 + b): a forward without a graph is added to each micro-batch
    checkpointed   the plain module, each node of which runs its forward again in the backward (torch.utils.checkpoint)
    memory         petra under the sequential schedule (reversible backpropagation) beside backprop, of one micro-batch: live tensor
                   bytes on a CPU, the most that torch's allocator handed out on a GPU
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import torch
from network import PlainTraining, prepared, runtime_of, save

from petra_graph.measure.tally import LiveBytes
from petra_graph.runtime.loop import Scheduler
from petra_graph.runtime.stage_io import MicroBatch


@click.command()
@click.option("--spec", default="specs/revnet18_cifar10.toml", show_default=True)
@click.option("--device", default="cpu", show_default=True, help="cpu, or a GPU such as cuda:0.")
@click.option("--side", default=32, show_default=True, help="Pixels of an image's side.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="An override of the specification.")
@click.option("--batch", default=64, show_default=True, help="Samples in a micro-batch.")
@click.option("--micro-batches", default=3, show_default=True, help="In one measurement.")
@click.option("--rounds", default=7, show_default=True, help="Measurements of each; their median ratio counts.")
@click.option("--threads", default=1, show_default=True)
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the result into this file.")
def main(
    spec: str,
    device: str,
    side: int,
    overrides: Sequence[str],
    batch: int,
    micro_batches: int,
    rounds: int,
    threads: int,
    write: bool,
    output: Path | None,
) -> None:
    torch.set_num_threads(threads)
    common = [
        "data.name=random",
        f"data.options.shape=[3, {side}, {side}]",
        "data.options.classes=10",
        f"data.batch={batch}",
        "method.accumulation=1",
        f"partition.devices=['{device}']",
        *overrides,
    ]
    configurations = {
        "backprop": ("method.name=backprop", "method.schedule=sequential"),
        "petra-sequential": ("method.name=petra", "method.schedule=sequential"),
        "petra-1f1b": ("method.name=petra", "method.schedule=1f1b"),
        "petra-lockstep": ("method.name=petra", "method.schedule=lockstep"),
    }
    ready = {name: prepared(spec, *common, *chosen) for name, chosen in configurations.items()}
    runtimes = {name: runtime_of(one) for name, one in ready.items()}
    first = ready["backprop"]
    data = [batch for _, batch in zip(range(micro_batches), first.opened.epoch(0), strict=False)]
    plain = PlainTraining(first, runtimes["backprop"], data, torch.device(device))

    runs: dict[str, Callable[[], None]] = {"plain": plain.train, "checkpointed": plain.train_checkpointed}
    runs |= {name: _trainer(runtime, data) for name, runtime in runtimes.items()}
    runs |= {"f0": plain.forward_without_graph, "f1": plain.forward_with_graph}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for name, action in runs.items():
        action()
        _wait(device)
        click.echo(f"warmed up: {name}", err=True)
    for _ in range(rounds):
        for name, action in runs.items():
            began = time.perf_counter()
            action()
            _wait(device)
            seconds[name].append(time.perf_counter() - began)

    def ratio(name: str) -> float:
        return statistics.median(one / other for one, other in zip(seconds["plain"], seconds[name], strict=True))

    limit = statistics.median(whole / (whole + f0) for whole, f0 in zip(seconds["plain"], seconds["f0"], strict=True))
    result = {
        "spec": Path(spec).name,
        "device": device if device == "cpu" else torch.cuda.get_device_name(device),
        "images": [3, side, side],
        "batch": batch,
        "threads": threads,
        "rounds": rounds,
        "speed against the plain module": {name: round(ratio(name), 3) for name in ("checkpointed", *configurations)},
        "petra's limit, (f1 + b) / (f0 + f1 + b)": round(limit, 3),
        "petra against its limit": {
            name: round(ratio(name) / limit, 3) for name in configurations if name != "backprop"
        },
        "f0 and f1 against a plain training step": {name: round(1 / ratio(name), 3) for name in ("f0", "f1")},
        "peak bytes of one micro-batch": {
            "plain": _peak(plain.train, device),
            "checkpointed": _peak(plain.train_checkpointed, device),
            **{name: _peak(_trainer(runtime, data[:1]), device) for name, runtime in runtimes.items()},
        },
        "plain module, images per second": round(micro_batches * batch / statistics.median(seconds["plain"]), 1),
    }
    click.echo(json.dumps(result, indent=2))
    if output:
        output.write_text(json.dumps(result, indent=2) + "\n")
    if write:
        click.echo(f"written: {save('inline', result)}", err=True)


def _trainer(runtime: Scheduler, data: list[MicroBatch]) -> Callable[[], None]:
    return lambda: runtime.train(data, range(len(data)), lambda _: None)


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)


def _peak(action: Callable[[], None], device: str) -> int:
    """Return the most bytes that an action needs: beside what was there before on a GPU, where others' tensors stay."""
    if device == "cpu":
        with LiveBytes() as live:
            action()
        return int(live.peak)
    _wait(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    action()
    return torch.cuda.max_memory_allocated(device) - before


if __name__ == "__main__":
    main()
