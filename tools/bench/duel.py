"""Two processes that do everything in turns, and what they train: the network whole, in stages by petra, or by torch."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from attrs import frozen
from network import loss_of, prepared, runtime_of
from torch import Tensor

from petra_graph.executor.numerics import NumericsContext
from petra_graph.measure.tally import LiveBytes
from petra_graph.planning.plan_spec import plan
from petra_graph.planning.predict_plan import Plan
from petra_graph.profiling import profile
from petra_graph.record.profile_files import write_profile
from petra_graph.runtime.loop import Scheduler
from petra_graph.runtime.open_channels import open_channels
from petra_graph.runtime.waiting import Waker
from petra_graph.runtime.watchdog import Watchdog
from petra_graph.runtime.world import World
from petra_graph.training.assembly import executors
from petra_graph.training.prepare import Prepared

RANKS = 2


class Stopwatch(Waker):
    """A waker that records the times of waits."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[tuple[float, float]] = []

    def wait(self) -> None:
        """Wait, and remember it."""
        began = time.perf_counter()
        super().wait()
        self.waits.append((began, time.perf_counter()))

    def share(self, began: float, ended: float) -> float:
        """Return the share of a period that was spent waiting."""
        waited = sum(max(0.0, min(ended, end) - max(began, begin)) for begin, end in self.waits)
        return waited / (ended - began)


@frozen(kw_only=True)
class Contestant:
    """One way to train so many updates."""

    train: Callable[[], object] | None
    """This process's part; None: it has none."""
    slot_bytes: int = 0
    """Of the channels that this process receives on."""


class Duel:
    """Two processes that do everything in turns."""

    def __init__(self, world: World, spec: str, batch: int, updates: int) -> None:
        self.world, self.spec, self.batch, self.updates = world, spec, batch, updates
        self.waker = Stopwatch()
        self.watchdog = Watchdog(world, self.waker)
        self.store = world.store
        self.ready = self.prepared(4)
        self.names = self.ready.network.graph.order
        generator = torch.Generator().manual_seed(0)
        shape = self.ready.facts.shape
        self.samples = torch.randint(256, (batch, *shape), generator=generator, dtype=torch.uint8)
        self.targets = torch.randint(10, (batch,), generator=generator)
        self.evaluation = NumericsContext(device=torch.device("cpu"), precision=self.ready.spec.precision, seed=0)
        self.loss = loss_of(self.ready)

    def common(self, parts: int) -> tuple[str, str]:
        """Return settings for micro-batches of a part of the batch."""
        return f"data.batch={self.batch // parts}", f"method.accumulation={parts}"

    def prepared(self, parts: int, *overrides: str) -> Prepared:
        """Prepare the network for micro-batches of a part of the batch."""
        return prepared(self.spec, *self.common(parts), *overrides)

    def told(self, name: str, value: Any) -> Any:
        """Return what rank 0 has found."""
        if self.world.rank == 0:
            self.store.set(name, value)
        return self.store.wait(name, 600.0, name)

    def micro_batches(self, parts: int) -> list[tuple[Tensor, Tensor]]:
        """Return those of one measurement."""
        pairs = zip(self.samples.chunk(parts), self.targets.chunk(parts), strict=True)
        return list(pairs) * self.updates

    # --- contestants -----------------------------------------------------------------------------------------------

    def planned(self, *settings: str) -> tuple[list[list[str]], float]:
        """Let the planner cut in two, with a profile of this machine that rank 0 takes.

        Returns:
            the stages, and the share of both processes' time that they can use by the plan.
        """
        made = self.plan(*settings)
        used = made.prediction.timing.utilisation.values()
        return [list(program.nodes) for program in made.prediction.programs], sum(used) / len(used)

    def plan(self, *settings: str) -> Plan:
        """Return the plan of two stages on two devices, with that profile."""
        file = Path(self.spec).with_suffix(".profile.json")
        if self.world.rank == 0 and not file.exists():
            write_profile(file, profile(self.spec, self.common(4), 20))
        self.told("profile", True)
        return plan(
            self.spec,
            (*self.common(4), *settings, "partition.stages=2", f"partition.profile={file}", "partition.devices=2"),
        )

    def alone(self, method: str, stages: list[list[str]]) -> Contestant:
        """One process that trains the whole network in these stages."""
        settings = (f"method.name={method}", "method.schedule=sequential", f"partition.stages={json.dumps(stages)}")
        runtime = runtime_of(self.prepared(4, *settings))
        data = self.micro_batches(4)
        return Contestant(train=lambda: runtime.train(data, range(len(data)), _ignore))

    def petra(self, name: str, stages: list[list[str]], *overrides: str) -> Contestant:
        """Two stages on two processes."""
        ready = self.prepared(4, f"partition.stages={json.dumps(stages)}", *overrides)
        programs = ready.programs
        rank = self.world.rank
        own = executors([programs[rank]], ready.network, ready.facts, ready.training, [ready.stages[rank]])
        self.world.store = self.store.within(name)
        channels = open_channels(
            programs, (0, 1), self.world, waker=self.waker, peer_lost=self.watchdog.lost, transport="auto"
        )
        self.world.wait_for_all("channels")
        runtime = Scheduler(own, channels, rank=self.world.rank, size=RANKS, supervisor=self.watchdog)
        data = self.micro_batches(4)
        received = [channels.channels[key] for key in channels.receivers]
        slots = sum(channel.capacity * channel.slot_bytes for channel in received)
        return Contestant(
            train=lambda: runtime.train(data, range(len(data)), _ignore),
            slot_bytes=slots,
        )

    # --- measurements ----------------------------------------------------------------------------------------------

    def timed(self, contestant: Contestant) -> dict[str, list[float]]:
        """Return of both processes the seconds, and the shares of waiting, overall and between fill and drain."""
        dist.barrier()
        self.waker.waits.clear()
        began = time.perf_counter()
        if contestant.train is not None:
            contestant.train()
        seconds = (ended := time.perf_counter()) - began
        steady = self.waker.share(began + seconds / 10, ended - seconds / 10)
        own = [seconds, self.waker.share(began, ended), steady]
        names = ("seconds", "waiting", "steady")
        return dict(zip(names, map(list, zip(*self.all(own), strict=True)), strict=True))

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


def _ignore(_: object) -> None:
    """Nobody looks at the losses."""
