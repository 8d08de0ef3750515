"""One process of a run on several.

The process that hosts the head of the first replica makes the run directory, records, shows progress and saves the
weights. A failure anywhere ends all processes (`failure_handling`).
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from petra_graph.errors import Interrupted, RunFailed, printable
from petra_graph.executor.stage import StageExecutor
from petra_graph.record import checkpoint
from petra_graph.record.run_directory import run_directory
from petra_graph.runtime.control.gpus import gpu_of, visible_gpus
from petra_graph.runtime.control.rank_info import RankInfo
from petra_graph.runtime.control.signals import stop_requests
from petra_graph.runtime.control.start_up import started
from petra_graph.runtime.control.waker import Waker
from petra_graph.runtime.control.watchdog import Watchdog
from petra_graph.runtime.control.world import World, hard_exit
from petra_graph.runtime.data_parallel.replicas import Replicas, data_parallel_ranks, pipeline_of
from petra_graph.runtime.scheduler.context import ProcessContext
from petra_graph.runtime.scheduler.scheduler import Scheduler
from petra_graph.runtime.transport.channels import open_channels
from petra_graph.runtime.transport.gather import gathered
from petra_graph.spec.load import Given, load
from petra_graph.training.checkpoints.checkpointing import Checkpoints
from petra_graph.training.checkpoints.resumption import Resumption
from petra_graph.training.data.micro_batches import Part
from petra_graph.training.loop.meters import Meters
from petra_graph.training.loop.trainer import Trainer
from petra_graph.training.prepared_run import Prepared
from petra_graph.training.processes.failure_handling import FailureHandling
from petra_graph.training.processes.rank_agreement import agree
from petra_graph.training.processes.run_process import Peers, Progress
from petra_graph.training.record.run_record import RunRecord, open_record
from petra_graph.training.start_reporter import StartReporter

_END_SECONDS = 60.0
_LOOK_SECONDS = 0.002


class Worker(Peers):
    """This process, among those that a launcher started."""

    def __init__(self, rank_info: RankInfo) -> None:
        """Meet the other processes."""
        self.world = World(rank_info)
        self.world.rendezvous()
        self.size, self.rank = self.world.size, self.world.rank
        self.waker = Waker()
        self.watchdog = Watchdog(self.world, self.waker)
        self.world.check = self.watchdog.check
        started()
        self.failures = FailureHandling(world=self.world, watchdog=self.watchdog)
        self.watchdog.on_stuck = self.failures.end_at_once
        self.replica = 0
        self.ranks: Sequence[int] = ()
        """Of each stage of this process's pipeline, once they are known."""

    @contextmanager
    def control(self) -> Iterator[None]:
        """Hand signals and errors on to all processes; a second SIGINT ends this process at once."""
        requests = stop_requests(
            self.watchdog.ask,
            lambda: hard_exit(Interrupted.exit_code),
            ends_process=True,  # its launcher may send signals, because another process ended a moment before
        )
        with requests:
            try:
                yield
            except Interrupted:
                raise
            except Exception as error:  # noqa: BLE001  the other processes must know of any error
                self.failures.fail(error)

    def start_reporter(self) -> StartReporter:
        """Return what says where the start takes long, here and to the watchdog."""
        return StartReporter(f"rank {self.rank}: ", self.watchdog)

    def join(self, prepared: Prepared) -> Prepared:
        """Agree with rank 0 on the run, and find out where each stage is."""
        world, replicas = self.world, prepared.spec.partition.replicas
        self.failures.prepared = prepared
        agree(world, prepared)
        self.replica, self.ranks = pipeline_of(world.rank, prepared.ranks, replicas, self.size)
        self.failures.ranks = pipeline_of(0, prepared.ranks, replicas, self.size)[1]
        each = self.size // replicas
        self.watchdog.stages = tuple(
            tuple(stage for stage, rank in enumerate(prepared.ranks, start=1) if rank == at % each)
            for at in range(self.size)
        )
        self.watchdog.limit_seconds = prepared.spec.run.watchdog
        batches = attrs.evolve(prepared.batches, part=self._part, replica=self.replica)
        return attrs.evolve(prepared, batches=batches)

    def resumption(self, directory: Path | None, given: Given, overrides: Iterable[str]) -> Resumption | None:
        """Return the checkpoint that a run goes on from: the one that rank 0 finds whole.

        Raises:
            Interrupted: a launcher starts the run again, although it has stopped at a request.
        """
        world = self.world
        if world.rank_info.restarts and world.launch.get("interrupted"):
            raise Interrupted
        restarted = None
        if directory is None and world.rank_info.restarts:
            name, spec = world.launch.get("directory"), load(given, overrides).spec
            restarted = None if name is None or spec is None else run_directory(spec.run.directory, name)
            directory = restarted
        if world.rank == 0:
            there = directory is not None and checkpoint.repaired(directory)
            found = Resumption.find(directory) if directory is not None and there else None
            if found is None and restarted is not None:  # this attempt makes a directory of its own
                shutil.rmtree(restarted, ignore_errors=True)
            world.store.set("resume", [] if found is None else [found.directory.name, found.at])
            return found
        chosen = world.wait("resume")
        if not chosen:
            return None
        if directory is None or directory.name != chosen[0] or chosen[1] not in checkpoint.numbers(directory):
            raise RunFailed(
                f"rank {world.rank} on {world.own.host} cannot see the checkpoint of {chosen[0]} before forward {chosen[1]}",
                hint="runs on several machines go on where all of them share run.directory",
            )
        return Resumption.find(directory, chosen[1])

    def create_record(self, prepared: Prepared, resumption: Resumption | None) -> RunRecord | None:
        """Create the run directory, or open that of a run that goes on, in the process with the head of the first replica.

        Raises:
            RunFailed: it cannot be created, or another process cannot see it and checkpoints are to be written there.
        """
        if self._records:
            record = self.failures.record = open_record(prepared, resumption, self.size)
            self.world.store.set("directory", record.directory.name)
            self.world.launch.set("directory", record.directory.name)
            self.failures.directory = record.directory
            self._says_whether_it_sees(record.directory)
            return record
        name = self.world.wait("directory")
        self.world.launch.set("directory", name)
        found = run_directory(prepared.spec.run.directory, name)
        directory = self.failures.directory = found if resumption is None else resumption.directory
        self._says_whether_it_sees(directory)
        self._says_who_prints()
        spec = prepared.spec.checkpoint
        if (spec.every or spec.best) is not None and (directory is None or not directory.is_dir()):
            raise RunFailed(
                f"rank {self.world.rank} on {self.world.own.host} cannot see the run directory {directory}",
                hint="checkpoints need a run.directory that all machines share",
            )
        return None

    def _says_who_prints(self) -> None:
        """Write a line where this is the first process of a launcher that would print nothing: another has the one that records."""
        records, beside = self.failures.ranks[-1], int(os.environ.get("LOCAL_WORLD_SIZE") or self.size)
        if os.environ.get("LOCAL_RANK") == "0" and records not in range(self.rank, self.rank + beside):
            host = self.world.neighbours[records].host
            sys.stderr.write(
                printable(f"rank {self.rank} of {self.size} trains; rank {records} on {host} prints the progress\n")
            )

    def _says_whether_it_sees(self, directory: Path | None) -> None:
        self.world.store.set(f"sees/{self.world.rank}", directory is not None and directory.is_dir())

    def checkpoints(self, trainer: Trainer, resumption: Resumption | None) -> Checkpoints:
        """Return the checkpoints of this process's stages."""
        assert self.failures.directory is not None
        blind = [rank for rank in range(self.size) if not self.world.wait(f"sees/{rank}")]
        return Checkpoints(
            prepared=trainer.prepared,
            directory=self.failures.directory,
            trainer=trainer,
            supervisor=self.watchdog,
            store=self.world.another_connection(),
            rank=self.world.rank,
            size=self.size,
            records=self._records,
            folders=trainer.prepared.checked.loaded.folders if resumption is None else resumption.manifest.folders,
            resumed_at=None if resumption is None else resumption.skips,
            blind=[f"rank {rank} on {self.world.neighbours[rank].host}" for rank in blind],
        )

    def scheduler(self, prepared: Prepared) -> Scheduler:
        """Build the stages of this process, and connect them with all others; all processes connect at the same time."""
        pairs = zip(prepared.programs, self.ranks, strict=True)
        own = [program for program, rank in pairs if rank == self.world.rank]
        if any(program.device.startswith("cuda") for program in prepared.programs):
            gpu = self._choose_gpu()
            own = [attrs.evolve(program, device=gpu) for program in own]
        executors = self.failures.executors = prepared.executors(own)
        self.world.connect()
        channels = open_channels(
            prepared.programs,
            self.ranks,
            self.world,
            waker=self.waker,
            peer_lost=self.watchdog.lost,
            transport=prepared.spec.run.transport,
        )
        self.world.wait_for_all("channels")
        context = ProcessContext(
            rank=self.world.rank,
            size=self.size,
            supervisor=self.watchdog,
            policy=prepared.policy,
            global_clip=prepared.global_clip,
            replicas=self._replicas(prepared, executors),
        )
        scheduler = Scheduler(executors, channels, context)
        self.failures.under_way = True
        return scheduler

    def stop_requests(self, more: Sequence[int]) -> AbstractContextManager[None]:
        """Within the context, hand further signals on, too; `control` hands on the usual ones from the start."""
        return stop_requests(self.watchdog.ask, lambda: None, insistent=(), ends_process=True, heard=more)

    def gather(self, name: str, own: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the tensors of all stages in the process that records, this process's own elsewhere."""
        found = gathered(self.world, name, own, self.failures.ranks)
        self.watchdog.check()
        return found

    def gather_measured(self, own: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return what all processes have measured, in the order of ranks; [] in a process that does not record."""
        self.world.store.set(f"measured/{self.rank}", own)
        return [self.world.wait(f"measured/{rank}") for rank in range(self.size)] if self._records else []

    def exchange_meters(self, epoch: int, meters: Meters) -> None:
        """Merge the meters of other replicas' heads into those of the first replica's."""
        if not self._hosts_head:
            return
        if self.replica > 0:
            self.world.store.set(f"meters/{epoch}/{self.replica}", meters.sums())
            return
        for replica in range(1, self.size // len(set(self.ranks))):
            while (sums := self.world.store.get(f"meters/{epoch}/{replica}")) is None:
                self.watchdog.check()
                time.sleep(_LOOK_SECONDS)
            meters.merge(sums)

    def leaders(self, name: str, own: str) -> str:
        """Return the text of the process that records."""
        if self._records:
            self.world.store.set(name, own)
            return own
        while (found := self.world.store.get(name)) is None:
            self.watchdog.check()
            time.sleep(_LOOK_SECONDS)
        return str(found)

    def warn(self, texts: Sequence[str]) -> None:
        """Publish all warnings of this process so far."""
        self.world.store.set(f"warnings/{self.rank}", list(texts))

    def warnings(self) -> Sequence[str]:
        """Return those of the other processes."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        return [text for rank in others for text in self.world.store.get(f"warnings/{rank}") or ()]

    def publish(self, progress: Progress) -> None:
        """Publish how far the training came: if this process is killed, another one writes the summary."""
        if self.failures.record is not None:
            self.world.store.set("progress", attrs.asdict(progress))

    def leave(self, *, interrupted: bool) -> None:
        """End together with the other processes."""
        if interrupted:
            self.world.launch.set("interrupted", True)
        self.world.wait_for_all("run")
        self.watchdog.close()
        self.world.wait_for_all("process", _END_SECONDS)
        self.world.shutdown(self.world.store)

    @property
    def _hosts_head(self) -> bool:
        return self.ranks[-1] == self.world.rank

    @property
    def _records(self) -> bool:
        return self._hosts_head and self.replica == 0

    @property
    def _part(self) -> Part:
        if self.ranks[0] == self.world.rank:
            return "all"
        return "targets" if self._hosts_head else "nothing"

    def _choose_gpu(self) -> str:
        """Return the GPU of this process, which becomes torch's current one; all processes choose at the same time.

        Raises:
            SpecError: there is none for this process.
        """
        self.world.store.set(f"gpus/{self.rank}", visible_gpus())
        visible = [self.world.wait(f"gpus/{rank}") for rank in range(self.size)]
        index = gpu_of(self.rank, visible, [process.host for process in self.world.neighbours])
        torch.cuda.set_device(index)
        return f"cuda:{index}"

    def _replicas(self, prepared: Prepared, executors: Sequence[StageExecutor]) -> Replicas | None:
        partition = prepared.spec.partition
        if partition.replicas == 1:
            return None
        peers = data_parallel_ranks(self.world.rank, partition.replicas, self.size)
        return Replicas(executors, peers, self.watchdog, synchronised=partition.sync_batch_norm)
