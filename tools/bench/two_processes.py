"""Two processes: PETRA beside what else two processes can do, and beside the machine's own ceiling.

    python tools/bench/two_processes.py --write

Everything runs in turns in one pair of processes, one thread each; read the ratios, which are medians over the rounds.

    ceiling              two independent processes, each training the whole network, against one of them alone
    petra                1f1b, two stages, cut by the planner with a profile of this machine
    lockstep             the same stages with twice the micro-batches in flight, so that uneven times matter less
    torch 1F1B, GPipe    torch.distributed.pipelining in the same two stages, 4 and 8 micro-batches, plain and checkpointed
    DDP                  torch's DistributedDataParallel, half of the batch each

All train the same network on the same number of samples an update. Bytes are live tensor bytes in a pass of their own: activations,
gradients and messages, without parameters and PETRA's slots for messages.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
import torch
import torch.distributed as dist
from network import Plain, Train, in_turns, loss_of, ratio, save, trainer, update_of
from torch import Tensor
from torch._C._distributed_c10d import TCPStore
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

from petra_graph.measure.tally import LiveBytes
from petra_graph.planning.network import write_profile
from petra_graph.planning.plan_spec import Planner
from petra_graph.profiling import profile
from petra_graph.runtime.loop import Scheduler
from petra_graph.runtime.open_channels import open_channels
from petra_graph.runtime.store import rank_info_from
from petra_graph.runtime.system import hard_exit, keep_freed_memory
from petra_graph.runtime.watchdog import Watchdog
from petra_graph.runtime.world import World
from petra_graph.training.prepare import Prepared, prepare

RANKS, CPU = 2, torch.device("cpu")
ALONE = "one reversible process"
SPEC = """\
name = "two-processes"
[[graph.node]]
name = "stem"
block = "conv-stem"
options = {{ channels = {half} }}
[[graph.node]]
name = "block"
block = "rev-basic"
repeat = {blocks}
[[graph.node]]
name = "head"
block = "pool-linear"
options = {{ outputs = 10 }}
[method]
schedule = "1f1b"
[data]
name = "random"
options = {{ shape = [3, {side}, {side}], classes = 10 }}
"""


@click.command()
@click.option("--width", default=32, show_default=True, help="Channels of both streams together.")
@click.option("--side", default=32, show_default=True, help="Pixels.")
@click.option("--blocks", default=17, show_default=True, help="Residual blocks; 9 and 17 give two stages alike.")
@click.option("--batch", default=32, show_default=True, help="Samples in an update.")
@click.option("--updates", default=12, show_default=True, help="In one measurement.")
@click.option("--rounds", default=10, show_default=True, help="Measurements of each.")
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
def main(width: int, side: int, blocks: int, batch: int, updates: int, rounds: int, write: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        spec, answer = Path(folder, "spec.toml"), Path(folder, "answer.json")
        spec.write_text(SPEC.format(side=side, half=width // 2, blocks=blocks))
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        common = {
            "OMP_NUM_THREADS": "1",
            "WORLD_SIZE": str(RANKS),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "PETRA_BENCH": json.dumps([str(spec), batch, updates, rounds, str(answer)]),
        }
        workers = [
            subprocess.Popen([sys.executable, __file__], env={**os.environ, **common, "RANK": str(rank)})
            for rank in range(RANKS)
        ]
        if codes := [code for worker in workers if (code := worker.wait())]:
            sys.exit(max(codes))
        setting = {"width": width, "side": side, "blocks": blocks, "batch": batch, "updates": updates, "rounds": rounds}
        result = {**setting, **json.loads(answer.read_text())}
    click.echo(json.dumps(result, indent=2))
    if write:
        click.echo(f"written: {save('two_processes', result)}", err=True)


# --- one of the two processes ----------------------------------------------------------------------------------------


def work(spec: str, batch: int, updates: int, rounds: int, answer: str) -> None:
    """Be a process: build everything that is compared, train each in turns, and let rank 0 write the answer."""
    torch.set_num_threads(1)
    keep_freed_memory()
    place = rank_info_from(os.environ)
    assert place is not None
    world = World(place)
    world.rendezvous()
    world.connect()
    pair = Pair(world, spec, batch, updates)
    ways = dict(pair.ways())
    seconds = in_turns(ways, rounds, lambda train: max(pair.timed(train)))
    peaks = {name: pair.peak(train) for name, train in ways.items()}
    if world.rank == 0:
        Path(answer).write_text(json.dumps(result(seconds, peaks, pair.cut, batch * updates)))
    dist.barrier()
    pair.watchdog.close()
    hard_exit(0)


def result(
    seconds: dict[str, list[float]], peaks: dict[str, list[int]], cut: Sequence[Sequence[str]], samples: int
) -> dict[str, Any]:
    def times(name: str, other: str) -> float:
        """Return how many times faster one is than another, in the same round."""
        return round(ratio(seconds[other], seconds[name]), 3)

    both = "two independent processes"
    return {
        "last node of the first stage": cut[0][-1],
        "machine's ceiling (two independent processes against one)": round(2 / times(ALONE, both), 3),
        "of two independent processes' throughput": {name: times(name, both) / 2 for name in ("petra", "lockstep")},
        "petra against": {name: times("petra", name) for name in seconds if name != "petra"},
        "images per second": {
            name: round((1 + (name == both)) * samples / statistics.median(each), 1) for name, each in seconds.items()
        },
        "peak live tensor bytes of each process": peaks,
    }


class Pair:
    """This process's part of everything that two processes do."""

    def __init__(self, world: World, spec: str, batch: int, updates: int) -> None:
        self.world, self.spec, self.batch, self.updates = world, spec, batch, updates
        self.store, self.watchdog = world.store, Watchdog(world)
        self.ready = self.prepared()
        self.loss = loss_of(self.ready)
        generator = torch.Generator().manual_seed(0)
        self.samples = torch.randint(
            256, (batch, *self.ready.opened.facts.shape), generator=generator, dtype=torch.uint8
        )
        self.targets = torch.randint(10, (batch,), generator=generator)
        self.data = list(zip(self.samples.chunk(4), self.targets.chunk(4), strict=True)) * updates
        self.cut = self.planned_cut()

    def ways(self) -> Iterator[tuple[str, Train | None]]:
        """Yield all by name, in both processes at the same time; None: only the other one has a part."""
        first = self.world.rank == 0
        whole = self.alone("reversible-backprop")
        yield ALONE, whole if first else None
        yield "two independent processes", whole
        yield "one plain process", self.alone("backprop") if first else None
        yield "petra", self.petra("petra")
        yield "lockstep", self.petra("lockstep", "method.schedule=lockstep")
        for again in (False, True):
            for schedule in (Schedule1F1B, ScheduleGPipe):
                for parts in (4, 8):
                    name = f"torch {schedule.__name__.removeprefix('Schedule')}, {parts} micro-batches"
                    yield f"{name}{', checkpointed' * again}", self.pipeline(schedule, parts, again=again)
        yield "DDP", self.ddp()

    def prepared(self, *overrides: str) -> Prepared:
        return prepare(self.spec, (*self.common, *overrides))

    @property
    def common(self) -> tuple[str, ...]:
        return f"data.batch={self.batch // 4}", "method.accumulation=4"

    def planned_cut(self) -> list[list[str]]:
        """Let the planner cut in two, by a profile that rank 0 takes."""
        file = Path(self.spec).with_suffix(".profile.json")
        if self.world.rank == 0:
            write_profile(file, profile(self.spec, self.common, 20))
            self.store.set("profile", True)
        self.store.wait("profile", 600.0, "profile")
        settings = ("partition.stages=2", f"partition.profile={file}", "partition.devices=2")
        made = Planner(self.spec, (*self.common, *settings)).plan()
        return [list(stage.nodes) for stage in made.stages]

    def alone(self, method: str) -> Train:
        """One process that trains the whole network in these stages."""
        stages = f"partition.stages={json.dumps(self.cut)}"
        ready = self.prepared(f"method.name={method}", "method.schedule=sequential", stages)
        return trainer(Scheduler(ready.executors()), self.data)

    def petra(self, name: str, *overrides: str) -> Train:
        """Two stages on two processes."""
        ready, rank = self.prepared(f"partition.stages={json.dumps(self.cut)}", *overrides), self.world.rank
        self.world.store = self.store.beside(name)
        channels = open_channels(ready.programs, (0, 1), self.world, self.watchdog, transport="auto")
        self.world.wait_for_all("channels")
        own = ready.executors([ready.programs[rank]])
        return trainer(Scheduler(own, channels, supervisor=self.watchdog), self.data)

    def pipeline(self, schedule: Any, parts: int, *, again: bool) -> Train:
        """Two stages under a schedule of torch.distributed.pipelining; `again` is checkpointing, node by node."""
        rank = self.world.rank
        module = Plain(self.ready, CPU, self.cut[rank])
        module.checkpointed = again
        # Torch sends nothing but contiguous tensors, and so no other gradients.
        module.register_forward_pre_hook(_contiguous_gradients)
        module.register_forward_hook(lambda _, __, outputs: _contiguous(outputs))
        built = schedule(PipelineStage(module, rank, RANKS, CPU), parts, loss_fn=self.loss)
        step = update_of(self.ready, module)

        def train() -> None:
            for _ in range(self.updates):
                if rank == 0:
                    built.step(self.samples)
                else:
                    built.step(target=self.targets, losses=[])
                step()

        return train

    def ddp(self) -> Train:
        """Each process has half of the batch, in two micro-batches."""
        module = DistributedDataParallel(Plain(self.ready, CPU))
        step = update_of(self.ready, module.module)
        own = self.data[self.world.rank : 4 : RANKS]

        def train() -> None:
            for _ in range(self.updates):
                for at, (samples, target) in enumerate(own):
                    with module.no_sync() if at < len(own) - 1 else nullcontext():
                        torch.autograd.backward(self.loss(module(samples), target) / len(own))
                step()

        return train

    def timed(self, train: Train | None) -> list[float]:
        """Return the seconds of both processes."""
        dist.barrier()
        began = time.perf_counter()
        if train is not None:
            train()
        return self.of_both(time.perf_counter() - began)

    def peak(self, train: Train | None) -> list[int]:
        """Return the most live tensor bytes of both processes."""
        dist.barrier()
        with LiveBytes() as live:
            if train is not None:
                train()
        return self.of_both(live.peak)

    def of_both(self, value: Any) -> list[Any]:
        found: list[Any] = [None] * RANKS
        dist.all_gather_object(found, value)
        return found


def _contiguous_gradients(_: Any, streams: tuple[Tensor, ...]) -> None:
    for stream in streams:
        if stream.requires_grad:
            stream.register_hook(Tensor.contiguous)  # type: ignore[no-untyped-call]


def _contiguous(outputs: Any) -> Any:
    return tuple(one.contiguous() for one in outputs) if isinstance(outputs, tuple) else outputs.contiguous()


if __name__ == "__main__":
    if "PETRA_BENCH" in os.environ:
        work(*json.loads(os.environ["PETRA_BENCH"]))
    else:
        main()
