"""Two processes: PETRA beside what else two processes can do, and beside the machine's own ceiling.

Everything runs in turns in one pair of processes, one thread each; read the ratios, which are medians over the rounds.

    ceiling              two independent processes, each training the whole network, against one of them alone
    petra                1f1b, two stages, cut where this machine's timings balance them
    keep-graph           the same with `last_stage = "keep-graph"`, and its own cut
    torch 1F1B, GPipe    torch.distributed.pipelining with 4 and 8 micro-batches of the same batch, plain and checkpointed
    DDP                  torch's DistributedDataParallel, half of the batch each

All train the same network on the same number of samples an update. Bytes are live tensor bytes in a pass of their own:
activations, gradients and messages, and not parameters or what an optimizer keeps; PETRA's slots come on top and are
given beside them. Waiting is the share of a process's time in which its stages wait for a message or for room.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
import torch
import torch.distributed as dist
from attrs import evolve, frozen
from network import Plain, loss_of, prepared, runtime_of, save
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from petra_graph.executor.evaluation import Evaluation
from petra_graph.executor.update import parameter_groups
from petra_graph.measure.live_bytes import LiveBytes
from petra_graph.registry.building import load
from petra_graph.runtime.bell import Bell
from petra_graph.runtime.distributed import Crew, DistributedRuntime
from petra_graph.runtime.links import Wiring, connect
from petra_graph.runtime.lookout import Lookout
from petra_graph.runtime.world import World, leave, place_from
from petra_graph.session.assemble import executors
from petra_graph.session.prepare import Prepared

RANKS = 2
SPEC = """\
name = "parallel"
graph.input = {{ shape = [3, {side}, {side}], dtype = "uint8" }}
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
@click.option("--blocks", default=8, show_default=True, help="Residual blocks.")
@click.option("--batch", default=64, show_default=True, help="Samples in an update.")
@click.option("--updates", default=12, show_default=True, help="In one measurement.")
@click.option("--rounds", default=5, show_default=True, help="Measurements of each.")
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
def main(width: int, side: int, blocks: int, batch: int, updates: int, rounds: int, write: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder, "parallel.toml")
        spec.write_text(SPEC.format(side=side, half=width // 2, blocks=blocks))
        answer = Path(folder, "answer.json")
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        workers = [
            subprocess.Popen(
                [sys.executable, __file__],
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "RANK": str(rank),
                    "WORLD_SIZE": str(RANKS),
                    "LOCAL_RANK": str(rank),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(store.port),
                    "TORCHELASTIC_USE_AGENT_STORE": "True",
                    "PETRA_BENCH": json.dumps([str(spec), batch, updates, rounds, str(answer)]),
                },
            )
            for rank in range(RANKS)
        ]
        codes = [worker.wait() for worker in workers]
        if any(codes):
            sys.exit(max(codes))
        setting = {"width": width, "side": side, "blocks": blocks, "batch": batch, "updates": updates, "rounds": rounds}
        result = {**setting, **json.loads(answer.read_text())}
    click.echo(json.dumps(result, indent=2))
    if write:
        click.echo(f"written: {save('parallel', result)}", err=True)


# --- one of the two processes ----------------------------------------------------------------------------------------


class Stopwatch(Bell):
    """A bell that counts how long somebody waited."""

    seconds = 0.0

    def wait(self) -> None:
        """Wait, and count it."""
        began = time.perf_counter()
        super().wait()
        self.seconds += time.perf_counter() - began


@frozen(kw_only=True)
class Contestant:
    """One way to train so many updates."""

    train: Callable[[], object] | None
    """This process's part; None: it has none."""
    waited: Callable[[], float] | None = None
    """Seconds spent waiting so far."""
    slot_bytes: int = 0


class Duel:
    """Two processes that do everything in turns."""

    def __init__(self, world: World, spec: str, batch: int, updates: int) -> None:
        self.world, self.spec, self.batch, self.updates = world, spec, batch, updates
        self.bell = Stopwatch()
        self.lookout = Lookout(world, self.bell)
        self.facts = world.facts
        self.ready = self.prepared(4)
        self.names = self.ready.compiled.graph.order
        generator = torch.Generator().manual_seed(0)
        shape = self.ready.facts.shape
        self.samples = torch.randint(256, (batch, *shape), generator=generator, dtype=torch.uint8)
        self.targets = torch.randint(10, (batch,), generator=generator)
        self.evaluation = Evaluation(device=torch.device("cpu"), precision=self.ready.spec.precision, seed=0)
        self.loss = loss_of(self.ready)

    def prepared(self, parts: int, *overrides: str) -> Prepared:
        """Prepare the network for micro-batches of a part of the batch."""
        common = (f"data.batch={self.batch // parts}", f"method.accumulation={parts}")
        return prepared(self.spec, *common, *overrides)

    def told(self, name: str, value: Any) -> Any:
        """Return what rank 0 has found."""
        if self.world.rank == 0:
            self.facts.tell(name, value)
        return self.facts.ask(name, 600.0, name)

    def micro_batches(self, parts: int) -> list[tuple[Tensor, Tensor]]:
        """Return those of one measurement."""
        pairs = zip(self.samples.chunk(parts), self.targets.chunk(parts), strict=True)
        return list(pairs) * self.updates

    # --- contestants -----------------------------------------------------------------------------------------------

    def cut(self, again: bool, last_again: bool) -> list[list[str]]:
        """Balance two stages by timings of this machine, taken by rank 0.

        Args:
            again: whether the backward runs the forward again.
            last_again: whether it does so in the last stage, the head apart.
        """
        seconds = self.told("timings", self.timings() if self.world.rank == 0 else None)

        def cost(names: Sequence[str], repeats: bool) -> float:
            return sum(
                seconds[name][0] + seconds[name][1] + (seconds[name][2] if repeats and name != self.names[-1] else 0.0)
                for name in names
            )

        def slower(at: int) -> float:
            return max(cost(self.names[:at], again), cost(self.names[at:], last_again))

        at = min(range(1, len(self.names)), key=slower)
        return [list(self.names[:at]), list(self.names[at:])]

    def timings(self) -> dict[str, tuple[float, float, float]]:
        """Return seconds of each node's forward with a graph, its backward, and its forward without one."""
        module = self.plain()
        graph, (samples, target) = self.ready.compiled.graph, self.micro_batches(4)[0]
        found: dict[str, list[list[float]]] = {name: [] for name in self.names}
        for _ in range(9):
            streams = {"input": (self.evaluation.prepare(samples),)}
            for name in self.names:
                inputs = tuple(s.detach().requires_grad_() for p in graph.nodes[name].inputs for s in streams[p])
                block = module.blocks[name.replace(".", "_")]
                marks = [time.perf_counter()]
                with torch.no_grad():
                    self.evaluation.settle(block(*inputs))
                marks.append(time.perf_counter())
                outputs = self.evaluation.settle(block(*inputs))
                if name == self.names[-1]:
                    outputs = (self.loss(outputs[0], target),)
                marks.append(time.perf_counter())
                torch.autograd.backward(outputs, [torch.ones_like(one) for one in outputs])
                marks.append(time.perf_counter())
                found[name].append([marks[2] - marks[1], marks[3] - marks[2], marks[1] - marks[0]])
                streams[name] = tuple(one.detach() for one in outputs)
        return {name: tuple(map(statistics.median, zip(*times, strict=True))) for name, times in found.items()}

    def alone(self, method: str, stages: list[list[str]]) -> Contestant:
        """One process that trains the whole network in these stages."""
        settings = (f"method.name={method}", "method.schedule=sequential", f"partition.stages={json.dumps(stages)}")
        runtime = runtime_of(self.prepared(4, *settings))
        data = self.micro_batches(4)
        return Contestant(train=lambda: runtime.train(data, range(len(data)), _ignore))

    def petra(self, name: str, stages: list[list[str]], *overrides: str) -> Contestant:
        """Two stages on two processes."""
        ready = self.prepared(4, f"partition.stages={json.dumps(stages)}", *overrides)
        programs = ready.compiled.programs
        size = ready.spec.data.batch
        wiring = Wiring(
            programs=programs,
            ranks=(0, 1),
            shapes=ready.compiled.shapes,
            precision=ready.spec.precision,
            batch=size,
            evaluation_batch=size,
        )
        own = executors([programs[self.world.rank]], ready.compiled, ready.spec, ready.facts, ready.training)
        self.world.facts = self.facts.within(name)
        links = connect(wiring, self.world, self.bell, self.lookout, "auto")
        self.world.wait_for_all("links")
        crew = Crew(rank=self.world.rank, size=RANKS, wiring=wiring, links=links, lookout=self.lookout)
        runtime, data = DistributedRuntime(own, crew), self.micro_batches(4)
        slots = sum(links.planned[lane].count * links.planned[lane].slot_bytes for lane in links.receivers)
        return Contestant(
            train=lambda: runtime.train(data, range(len(data)), _ignore),
            waited=lambda: self.bell.seconds,
            slot_bytes=slots,
        )

    def torch_pipeline(self, schedule: Any, parts: int, stages: list[list[str]], *, again: bool) -> Contestant:
        """Two stages under a schedule of torch.distributed.pipelining; `again` is checkpointing, node by node."""
        rank = self.world.rank
        module = _Part(self.plain(), stages[rank], again=again)
        first, last = rank == 0, rank == RANKS - 1
        stage = PipelineStage(module, rank, RANKS, torch.device("cpu"))
        pipeline = schedule(stage, parts, loss_fn=self.loss)
        step = self.optimizer(module)
        samples = self.samples.to(torch.float32).div(255) if first else None

        def train() -> None:
            for _ in range(self.updates):
                if first:
                    pipeline.step(samples)
                else:
                    pipeline.step(target=self.targets if last else None, losses=[])
                step()

        return Contestant(train=train)

    def ddp(self) -> Contestant:
        """Each process has half of the batch, in two micro-batches."""
        module = DistributedDataParallel(self.plain())
        step = self.optimizer(module.module)
        own = [pair for index, pair in enumerate(self.micro_batches(4)[:4]) if index % RANKS == self.world.rank]

        def train() -> None:
            for _ in range(self.updates):
                for index, (samples, target) in enumerate(own):
                    with module.no_sync() if index < len(own) - 1 else nullcontext():
                        (self.loss(module(samples), target) / len(own)).backward()
                step()

        return Contestant(train=train)

    def plain(self) -> Plain:
        """Return the network as a module under autograd."""
        return Plain(self.ready.compiled.graph, self.ready.executors(), self.evaluation)

    def optimizer(self, module: Any) -> Callable[[], None]:
        """Return an update of a module's blocks."""
        groups = parameter_groups(module.blocks.values())
        chosen = self.ready.checked.optimizer
        optimizer = load(chosen.plugin)(groups, chosen.options)

        def step() -> None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return step

    # --- measurements ----------------------------------------------------------------------------------------------

    def timed(self, contestant: Contestant) -> dict[str, list[float]]:
        """Return the seconds and the seconds of waiting of both processes."""
        dist.barrier()
        waited = contestant.waited() if contestant.waited else 0.0
        began = time.perf_counter()
        if contestant.train is not None:
            contestant.train()
        own = [time.perf_counter() - began, (contestant.waited() - waited) if contestant.waited else 0.0]
        return dict(zip(("seconds", "waiting"), zip(*self.all(own), strict=True), strict=True))

    def peak(self, contestant: Contestant) -> list[int]:
        """Return the most live tensor bytes of both processes."""
        dist.barrier()
        with LiveBytes() as live:
            if contestant.train is not None:
                contestant.train()
        return self.all(live.peak)

    def all(self, value: Any) -> list[Any]:
        """Return both processes' values."""
        found: list[Any] = [None] * RANKS
        dist.all_gather_object(found, value)
        return found

    def contestants(self) -> Iterator[tuple[str, Contestant]]:
        """Yield all, in both processes at the same time."""
        cut = self.cut(again=True, last_again=True)
        whole = self.alone("reversible-backprop", cut)
        yield "one reversible process", whole if self.world.rank == 0 else evolve(whole, train=None)
        yield "two independent processes", whole
        plain = self.alone("backprop", cut)
        yield "one plain process", plain if self.world.rank == 0 else evolve(plain, train=None)
        yield "petra", self.petra("petra", cut)
        kept = self.cut(again=True, last_again=False)
        yield "petra, keep-graph", self.petra("kept", kept, "method.last_stage=keep-graph")
        for again in (False, True):
            stages = self.cut(again=again, last_again=again)
            for schedule in (Schedule1F1B, ScheduleGPipe):
                for parts in (4, 8):
                    name = f"torch {schedule.__name__.removeprefix('Schedule')}, {parts} micro-batches"
                    pipeline = self.torch_pipeline(schedule, parts, stages, again=again)
                    yield f"{name}, checkpointed" if again else name, pipeline
        yield "DDP", self.ddp()


class _Part(nn.Module):
    """Some nodes of a chain as torch's pipelining wants them."""

    def __init__(self, whole: Plain, names: Sequence[str], *, again: bool) -> None:
        super().__init__()
        self.evaluation, self.again = whole.evaluation, again
        self.blocks = nn.ModuleDict({key: whole.blocks[key] for name in names for key in [name.replace(".", "_")]})

    def forward(self, *streams: Tensor) -> Any:
        """Map the streams that come in to those that go out."""
        streams = self.evaluation.settle(streams)
        for block in self.blocks.values():
            streams = checkpoint(block, *streams, use_reentrant=False) if self.again else block(*streams)
            streams = self.evaluation.settle(streams)
        # torch sends nothing but contiguous tensors, and convolutions like channels last.
        return tuple(stream.contiguous() for stream in streams) if len(streams) > 1 else streams[0]


def _ignore(_: object) -> None:
    """Nobody looks at the losses."""


def work(spec: str, batch: int, updates: int, rounds: int, answer: str) -> None:
    torch.set_num_threads(1)
    place = place_from(os.environ)
    assert place is not None
    world = World(place)
    world.meet()
    world.connect()
    duel = Duel(world, spec, batch, updates)
    ready = dict(duel.contestants())
    for name, contestant in ready.items():
        duel.timed(contestant)
        if world.rank == 0:
            click.echo(f"warmed up: {name}", err=True)
    found: dict[str, list[dict[str, list[float]]]] = {name: [] for name in ready}
    for _ in range(rounds):
        for name, contestant in ready.items():
            found[name].append(duel.timed(contestant))
    peaks = {name: duel.peak(contestant) for name, contestant in ready.items()}
    slots = {name: duel.all(contestant.slot_bytes) for name, contestant in ready.items() if contestant.slot_bytes}
    if world.rank == 0:
        cuts = {"petra": duel.cut(again=True, last_again=True), "keep-graph": duel.cut(again=True, last_again=False)}
        Path(answer).write_text(json.dumps(_result(found, peaks, slots, cuts, batch * updates)))
    dist.barrier()
    duel.lookout.close()
    leave(0)


def _result(
    found: dict[str, list[dict[str, list[float]]]],
    peaks: dict[str, list[int]],
    slots: dict[str, list[int]],
    cuts: dict[str, list[list[str]]],
    samples: int,
) -> dict[str, Any]:
    seconds = {name: [max(one["seconds"]) for one in each] for name, each in found.items()}

    def times(name: str, other: str) -> float:
        """How many times faster one is than another, in the same round."""
        return statistics.median(b / a for a, b in zip(seconds[name], seconds[other], strict=True))

    ceiling = 2 / times("one reversible process", "two independent processes")
    petra = times("petra", "one reversible process")
    return {
        "last node of the first stage": {name: cut[0][-1] for name, cut in cuts.items()},
        "machine's ceiling (two independent processes against one)": round(ceiling, 3),
        "petra against one reversible process": round(petra, 3),
        "petra against one reversible process, of the ceiling": round(petra / ceiling, 3),
        "petra against": {name: round(times("petra", name), 3) for name in seconds if name != "petra"},
        "keep-graph against": {
            name: round(times("petra, keep-graph", name), 3) for name in seconds if name != "petra, keep-graph"
        },
        "images per second": {
            name: round((1 + (name == "two independent processes")) * samples / statistics.median(each), 1)
            for name, each in seconds.items()
        },
        "waiting, share of each process's time": {
            name: [
                round(statistics.median(one["waiting"][rank] / one["seconds"][rank] for one in each), 4)
                for rank in range(RANKS)
            ]
            for name, each in found.items()
            if name.startswith("petra")
        },
        "peak live tensor bytes of each process": peaks,
        "bytes of slots in each process": slots,
    }


if __name__ == "__main__":
    if "PETRA_BENCH" in os.environ:
        work(*json.loads(os.environ["PETRA_BENCH"]))
    else:
        main()
