"""One process of a run on several: prepares as all do, hosts its stages, and ends as all end.

The process that hosts the head makes the run directory, records, shows and saves; the others train and stay silent. A
failure anywhere ends all of them (`ending`).
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import attrs
import torch
from attrs import define, frozen

from petra_graph.errors import Interrupted, SpecError
from petra_graph.executor.stage import StageExecutor
from petra_graph.record.listener import EpochEnded, Listener, Started
from petra_graph.record.metrics import Metrics
from petra_graph.runtime.control.heap import keep_freed_memory
from petra_graph.runtime.control.rank_info import RankInfo
from petra_graph.runtime.control.waker import Waker
from petra_graph.runtime.control.watchdog import Watchdog
from petra_graph.runtime.control.world import World, hard_exit
from petra_graph.runtime.data_parallel.replicas import Replicas, data_parallel_ranks, pipeline_of
from petra_graph.runtime.scheduler.context import ProcessContext
from petra_graph.runtime.scheduler.scheduler import Scheduler
from petra_graph.runtime.transport.channels import open_channels
from petra_graph.runtime.transport.gather import gathered
from petra_graph.spec.model import PartitionSpec
from petra_graph.training.agreement import agree
from petra_graph.training.assemble import executors
from petra_graph.training.failure_handling import FailureHandling
from petra_graph.training.loop import Trainer, follow
from petra_graph.training.meters import Meters
from petra_graph.training.prepare import Prepared, fix_arithmetic, prepare
from petra_graph.training.run_record import RunRecord, Summary

_END_SECONDS = 60.0
_LOOK_SECONDS = 0.002


def work(
    place: RankInfo, path: str, overrides: Iterable[str], listener: Listener
) -> tuple[Summary | None, Interrupted | None]:
    """Do this process's part of a run.

    Returns:
        the summary, where the head is, and the interruption that ended the run, if one did.

    Raises:
        SpecError, PluginError, RunFailed: the run cannot start or go on; this process tells it.
        FailedElsewhere: another one does.
    """
    world = World(place)
    world.rendezvous()
    waker = Waker()
    watchdog = Watchdog(world, waker)
    ending = FailureHandling(world=world, watchdog=watchdog)
    watchdog.on_stuck = ending.end_at_once
    worker = _Worker(world=world, waker=waker, watchdog=watchdog, ending=ending)
    with _requests(worker.watchdog):
        try:
            interrupted = worker.run(path, overrides, listener)
        except Exception as error:  # noqa: BLE001  whatever it is, the others must know
            ending.fail(error)
    return worker.summary, interrupted


@define(kw_only=True)
class _Worker:
    """What this process does."""

    world: World
    waker: Waker
    watchdog: Watchdog
    ending: FailureHandling
    replica: int = 0
    ranks: Sequence[int] = ()
    """Of each stage of its pipeline, once they are known."""
    summary: Summary | None = None

    def run(self, path: str, overrides: Iterable[str], listener: Listener) -> Interrupted | None:
        """Train; return the interruption that ended it, if one did."""
        world, ending = self.world, self.ending
        ending.prepared = prepared = prepare(path, overrides, world.size)
        agree(world.store, world.rank, prepared)
        fix_arithmetic(prepared)
        keep_freed_memory()
        self._take_places(prepared)
        self.watchdog.limit_seconds = prepared.spec.run.watchdog
        if self._leads and self.replica == 0:
            ending.record = RunRecord.new(prepared, world.size)
            world.store.set("directory", str(ending.record.directory))
            ending.record.write_what_is_known()
        hosted = ending.hosted = self._hosted(prepared)
        runtime = self._runtime(prepared, hosted)
        ending.under_way = True
        mine = attrs.evolve(prepared, part=self._part(), replica=self.replica)
        interrupted = None
        try:
            self._train(mine, runtime, listener)
        except Interrupted as request:
            interrupted = request
        weights = gathered(world, hosted, ending.ranks)
        self.watchdog.check()
        if ending.record is not None:
            ending.record.write_weights(weights)
            self.summary = ending.record.summarise("interrupted" if interrupted else "done")
        world.wait_for_all("run")
        self.watchdog.close()
        world.wait_for_all("process", _END_SECONDS)
        world.shutdown(world.store)
        return interrupted

    def _take_places(self, prepared: Prepared) -> None:
        """Find out which stages are where."""
        size, replicas = self.world.size, prepared.spec.partition.replicas
        stages = prepared.compiled.ranks
        self.replica, self.ranks = pipeline_of(self.world.rank, stages, replicas, size)
        self.ending.ranks = pipeline_of(0, stages, replicas, size)[1]
        each = size // replicas
        self.watchdog.stages = tuple(
            tuple(stage for stage, rank in enumerate(stages, start=1) if rank == at % each) for at in range(size)
        )

    @property
    def _leads(self) -> bool:
        return self.ranks[-1] == self.world.rank

    def _part(self) -> Any:
        if self.ranks[0] == self.world.rank:
            return "all"
        return "targets" if self._leads else "nothing"

    def _hosted(self, prepared: Prepared) -> tuple[StageExecutor, ...]:
        programs = [
            attrs.evolve(program, device=self._device(program.device))
            for program, rank in zip(prepared.compiled.programs, self.ranks, strict=True)
            if rank == self.world.rank
        ]
        return executors(
            programs, prepared.compiled, prepared.spec, prepared.facts, prepared.training, replica=self.replica
        )

    def _device(self, name: str) -> str:
        """Return the device of this process, where the name is as if all were on one machine."""
        if not name.startswith("cuda"):
            return name
        local, available = self.world.rank_info.local_rank, torch.cuda.device_count()
        if local >= available:
            raise SpecError(
                f"rank {self.world.rank} is process {local + 1} of its machine, which has {available} CUDA devices",
                hint='start as many processes as devices, or set partition.devices = ["cpu"]',
            )
        return f"cuda:{local}"

    def _runtime(self, prepared: Prepared, hosted: Sequence[StageExecutor]) -> Scheduler:
        world, compiled = self.world, prepared.compiled
        world.connect()
        count = prepared.spec.partition.replicas
        channels = open_channels(
            compiled.programs,
            self.ranks,
            world,
            waker=self.waker,
            peer_lost=self.watchdog.lost,
            transport=prepared.spec.run.transport,
        )
        world.wait_for_all("channels")
        context = ProcessContext(
            rank=world.rank,
            size=world.size,
            supervisor=self.watchdog,
            policy=prepared.policy,
            global_clip=prepared.global_clip,
            replicas=self._replicas(hosted, prepared.spec.partition) if count > 1 else None,
        )
        return Scheduler(hosted, channels, context)

    def _replicas(self, hosted: Sequence[StageExecutor], spec: PartitionSpec) -> Replicas:
        peers = data_parallel_ranks(self.world.rank, spec.replicas, self.world.size)
        return Replicas(hosted, peers, self.watchdog, synchronised=spec.sync_batch_norm)

    def _train(self, prepared: Prepared, runtime: Scheduler, listener: Listener) -> None:
        record = self.ending.record
        if record is None:
            follow(prepared, runtime, self._tell_meters)
            return
        with Metrics(record.directory) as metrics:
            # Where to stop is agreed upon by all processes, so nobody asks the trainer.
            record.trainer = trainer = Trainer(prepared, runtime, metrics, listener)
            trainer.listener = _Telling(
                listener, lambda: self.world.store.set("reached", attrs.asdict(trainer.reached))
            )
            trainer.join = self._join_meters
            listener.started(record.started())
            try:
                trainer.run()
            finally:
                listener.stopped()

    def _tell_meters(self, epoch: int, meters: Meters) -> None:
        if self._leads:
            self.world.store.set(f"meters/{epoch}/{self.replica}", meters.told())

    def _join_meters(self, epoch: int, meters: Meters) -> None:
        """Add what the heads of other replicas saw."""
        for replica in range(1, self.world.size // len(set(self.ranks))):
            while (told := self.world.store.get(f"meters/{epoch}/{replica}")) is None:
                self.watchdog.check()
                time.sleep(_LOOK_SECONDS)
            meters.join(told)


@frozen
class _Telling(Listener):
    """Tells the other processes how far the training came: should this one be killed, they write the summary."""

    listener: Listener
    tell: Callable[[], None]

    def started(self, run: Started) -> None:
        """Pass it on."""
        self.listener.started(run)

    def trained(self, epoch: int, micro_batches: int, means: Mapping[str, float]) -> None:
        """Pass it on."""
        self.listener.trained(epoch, micro_batches, means)

    def evaluating(self, epoch: int) -> None:
        """Pass it on."""
        self.listener.evaluating(epoch)

    def epoch_ended(self, report: EpochEnded) -> None:
        """Pass it on, and tell."""
        self.tell()
        self.listener.epoch_ended(report)

    def stopped(self) -> None:
        """Pass it on."""
        self.listener.stopped()


@contextmanager
def _requests(watchdog: Watchdog) -> Iterator[None]:
    """Turn SIGINT and SIGTERM into requests; a second SIGINT ends this process at once."""
    interrupts: list[int] = []

    def ask(number: int, _: FrameType | None) -> None:
        # Not `watchdog.asked`: the first signal may come after others have passed their own one on.
        if interrupts and number == signal.SIGINT:
            hard_exit(Interrupted.exit_code)
        interrupts.extend([number] * (number == signal.SIGINT))
        watchdog.ask(signal.Signals(number).name)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask)
    yield
    # From here on this process ends: its launcher may ask it to, because another one ended a moment before.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
