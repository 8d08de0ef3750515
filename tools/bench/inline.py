"""One process: how far the scheduler is from the arithmetic's own limits.

The same network runs as a plain module under autograd, in turns with the runtime, in one invocation; read the ratios.

    backprop   against the plain module: the runtime's overhead
    petra      against its own limit (f1 + b) / (f0 + f1 + b): a forward without a graph is added to each micro-batch
    memory     petra under the sequential schedule (reversible backpropagation) beside backprop, in live tensor bytes
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import click
import torch
from network import Plain, loss_of, prepared, runtime_of, save

from petra_graph.blocks import Block
from petra_graph.executor.numerics import NumericsContext
from petra_graph.executor.stage_update import parameter_groups
from petra_graph.kinds.plugin import load
from petra_graph.measure.tally import LiveBytes
from petra_graph.runtime.scheduler.scheduler import Scheduler
from petra_graph.runtime.scheduler.stage_operations import MicroBatch
from petra_graph.training.prepared_run import Prepared


@click.command()
@click.option("--spec", default="specs/revnet18_cifar10.toml", show_default=True)
@click.option("--batch", default=64, show_default=True, help="Samples in a micro-batch.")
@click.option("--micro-batches", default=3, show_default=True, help="In one measurement.")
@click.option("--rounds", default=7, show_default=True, help="Measurements of each; their median ratio counts.")
@click.option("--threads", default=1, show_default=True)
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
def main(spec: str, batch: int, micro_batches: int, rounds: int, threads: int, write: bool) -> None:
    torch.set_num_threads(threads)
    common = [
        "data.name=random",
        "data.options.shape=[3, 32, 32]",
        "data.options.classes=10",
        f"data.batch={batch}",
        "method.accumulation=1",
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
    plain = _Plain(first, runtimes["backprop"], data)

    runs: dict[str, Callable[[], None]] = {"plain": plain.train}
    runs |= {name: _trainer(runtime, data) for name, runtime in runtimes.items()}
    runs |= {"f0": plain.forward_without_graph, "f1": plain.forward_with_graph}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for name, action in runs.items():
        action()
        click.echo(f"warmed up: {name}", err=True)
    for _ in range(rounds):
        for name, action in runs.items():
            began = time.perf_counter()
            action()
            seconds[name].append(time.perf_counter() - began)

    def ratio(name: str) -> float:
        return statistics.median(one / other for one, other in zip(seconds["plain"], seconds[name], strict=True))

    limit = statistics.median(whole / (whole + f0) for whole, f0 in zip(seconds["plain"], seconds["f0"], strict=True))
    result = {
        "spec": Path(spec).name,
        "batch": batch,
        "threads": threads,
        "rounds": rounds,
        "speed against the plain module": {name: round(ratio(name), 3) for name in configurations},
        "petra's limit, (f1 + b) / (f0 + f1 + b)": round(limit, 3),
        "petra against its limit": {
            name: round(ratio(name) / limit, 3) for name in configurations if name != "backprop"
        },
        "f0 and f1 against a plain training step": {name: round(1 / ratio(name), 3) for name in ("f0", "f1")},
        "peak live tensor bytes of one micro-batch": {
            name: _peak(runtime, data[:1]) for name, runtime in runtimes.items()
        },
        "plain module, images per second": round(micro_batches * batch / statistics.median(seconds["plain"]), 1),
    }
    click.echo(json.dumps(result, indent=2))
    if write:
        click.echo(f"written: {save('inline', result)}", err=True)


class _Plain:
    """The plain module's training step and its parts."""

    def __init__(self, ready: Prepared, runtime: Scheduler, data: list[MicroBatch]) -> None:
        executors = runtime.executors
        evaluation = NumericsContext(device=torch.device("cpu"), precision=ready.spec.precision, seed=0)
        self.module = Plain(ready.network.graph, executors, evaluation)
        self.loss = loss_of(ready)
        groups = parameter_groups([cast(Block, block) for block in self.module.blocks.values()])
        self.optimizer = load(ready.checked.optimizer.plugin)(groups, ready.checked.optimizer.options)
        self.data = data

    def train(self) -> None:
        for samples, target in self.data:
            torch.autograd.backward(self.loss(self.module(samples), target))
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    def forward_without_graph(self) -> None:
        with torch.no_grad():
            self.forward_with_graph()

    def forward_with_graph(self) -> None:
        for samples, target in self.data:
            self.loss(self.module(samples), target)


def _trainer(runtime: Scheduler, data: list[MicroBatch]) -> Callable[[], None]:
    return lambda: runtime.train(data, range(len(data)), lambda _: None)


def _peak(runtime: Scheduler, data: list[MicroBatch]) -> int:
    with LiveBytes() as live:
        runtime.train(data, range(len(data)), lambda _: None)
    return int(live.peak)


if __name__ == "__main__":
    main()
