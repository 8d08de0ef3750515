"""torch's own pipelines and data parallelism on the devices of one machine: samples a second of a specification's network.

    torchrun --standalone --nproc-per-node 2 tools/bench/torch_pipelines.py --spec specs/revnet18_cifar10.toml --set data.name=random

A process a device, each with a stage of torch.distributed.pipelining, cut where petra's plan cuts, plain and with each node checkpointed;
and DistributedDataParallel, whose processes share the samples of an update. Rank 0 writes the result. Seconds are those of the slowest
process, the median of the rounds, which take turns.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import torch
import torch.distributed as dist
from baselines import Part, update_of
from network import Plain, loss_of, prepared
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

from petra_graph.executor.numerics import NumericsContext
from petra_graph.planning.plan_spec import plan
from petra_graph.runtime.stop_signals import hard_exit


@click.command()
@click.option("--spec", default="specs/revnet18_cifar10.toml", show_default=True)
@click.option("--device", default="cpu", show_default=True, help="cpu, or cuda for a GPU a process.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="An override of the specification.")
@click.option("--micro-batches", default=8, show_default=True, help="Of an update, each of data.batch samples.")
@click.option("--updates", default=5, show_default=True, help="In one measurement.")
@click.option("--rounds", default=5, show_default=True, help="Measurements of each.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the result into this file.")
def main(
    spec: str,
    device: str,
    overrides: Sequence[str],
    micro_batches: int,
    updates: int,
    rounds: int,
    output: Path | None,
) -> None:
    """Time torch's ways to train a network on several devices."""
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    here = torch.device(device, rank) if device == "cuda" else torch.device(device)
    if here.type == "cuda":
        torch.cuda.set_device(here)
    dist.init_process_group("nccl" if here.type == "cuda" else "gloo")
    torch.manual_seed(0)  # the same samples in all processes
    trainings = _Trainings(spec, overrides, here, rank, count, micro_batches)
    found: dict[str, list[float]] = {name: [] for name in trainings.all}
    for turn in range(rounds + 1):
        for name, train in trainings.all.items():
            seconds = _slowest(train, updates, here)
            if turn:  # The first one warms up.
                found[name].append(trainings.samples_per_update * updates / seconds)
    if rank == 0:
        rates = {name: round(statistics.median(each), 1) for name, each in found.items()}
        click.echo(json.dumps(rates, indent=2))
        if output is not None:
            output.write_text(json.dumps({"samples per second": rates}))
    dist.barrier()
    hard_exit(0)  # gloo's threads may end a process that tears them down


def _slowest(train: Callable[[], None], updates: int, device: torch.device) -> float:
    """Return the seconds of the process that takes longest."""
    dist.barrier()
    began = time.perf_counter()
    for _ in range(updates):
        train()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = torch.tensor(time.perf_counter() - began, device=device)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return float(seconds)


class _Trainings:
    """Updates of the network, one for each way to train it."""

    def __init__(
        self, spec: str, overrides: Sequence[str], device: torch.device, rank: int, count: int, micro_batches: int
    ) -> None:
        self.device, self.rank, self.count, self.micro_batches = device, rank, count, micro_batches
        self.ready = prepared(spec, *overrides, "partition.devices=['cpu']", "partition.stages=1")
        programs = plan(spec, (*overrides, f"partition.stages={count}", f"partition.devices={count}"))
        self.names = [list(program.nodes) for program in programs.prediction.programs]
        self.evaluation = NumericsContext(device=device, precision=self.ready.spec.precision, seed=0)
        self.loss = loss_of(self.ready)
        batch = self.ready.spec.data.batch * micro_batches
        self.samples_per_update = batch
        pairs = [pair for _, pair in zip(range(micro_batches), self.ready.opened.epoch(0), strict=False)]
        assert len(pairs) == micro_batches, f"the data has only {len(pairs)} micro-batches"
        self.samples, self.targets = (torch.cat(each).to(device) for each in zip(*pairs, strict=True))
        schedules = {"1F1B": Schedule1F1B, "GPipe": ScheduleGPipe}
        self.all: dict[str, Callable[[], None]] = {
            f"torch {name}{', checkpointed' if again else ''}": self._pipeline(schedule, again=again)
            for again in (False, True)
            for name, schedule in schedules.items()
        }
        self.all["DDP"] = self._data_parallel()

    def _plain(self) -> Plain:
        return Plain(self.ready.network.graph, self.ready.executors(), self.evaluation)

    def _pipeline(self, schedule: Any, *, again: bool) -> Callable[[], None]:
        first, last = self.rank == 0, self.rank == self.count - 1
        module = Part(self._plain(), self.names[self.rank], again=again).to(self.device)
        stage = PipelineStage(module, self.rank, self.count, self.device)
        built = schedule(stage, self.micro_batches, loss_fn=self.loss)
        step = update_of(self.ready, module)
        (samples,) = self.evaluation.canonicalize((self.evaluation.prepare(self.samples),))

        def train() -> None:
            inputs = (samples,) if first else ()
            built.step(*inputs, **({"target": self.targets, "losses": []} if last else {}))
            step()

        return train

    def _data_parallel(self) -> Callable[[], None]:
        module = DistributedDataParallel(self._plain().to(self.device))
        step = update_of(self.ready, module.module)
        samples, targets = self.samples.chunk(self.count)[self.rank], self.targets.chunk(self.count)[self.rank]

        def train() -> None:
            torch.autograd.backward(self.loss(module(samples), targets))
            step()

        return train


if __name__ == "__main__":
    main()
