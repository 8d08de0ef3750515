"""The process of a run: one that hosts all stages, or one of several.

The process that hosts the head of the first replica makes the run directory, records, shows progress and saves the
weights. Before anything is trained, every process compares its run with that of rank 0. A failure anywhere ends all processes (`ProcessEnd`).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import attrs
import torch
from torch import Tensor

from petra_graph.errors import FailedOnAnotherProcess, Interrupted, Problem, RunFailed, SpecError, printable
from petra_graph.program.stage_program import StageProgram
from petra_graph.record import checkpoint
from petra_graph.record.run_directory import run_directory
from petra_graph.runtime.loop import Scheduler
from petra_graph.runtime.open_channels import open_channels
from petra_graph.runtime.replicas import Replicas
from petra_graph.runtime.store import RankInfo, RunStore, gpu_of, visible_gpus
from petra_graph.runtime.system import REQUESTS, hard_exit, started, stop_requests
from petra_graph.runtime.waiting import Waker
from petra_graph.runtime.watchdog import Supervisor, Watchdog
from petra_graph.runtime.world import World
from petra_graph.spec.load_spec import Given, load
from petra_graph.training.data import Part
from petra_graph.training.evaluation import Meters
from petra_graph.training.prepare import Prepared
from petra_graph.training.processes.end import ProcessEnd
from petra_graph.training.resolved_spec import decisive
from petra_graph.training.resume import Resumption
from petra_graph.training.run_record import UNTRAINED, RunRecord
from petra_graph.training.trainer import Trainer


class _Values(dict[str, Any]):
    """What a `RunStore` is among several processes."""

    set = dict.__setitem__


class RunProcess:
    """The process of a run that hosts all stages; what processes tell each other, it tells itself.

    It holds what the run has so far, which is needed if the run fails: None before the step that makes it.
    """

    rank, size, replica = 0, 1, 0
    pipeline: Sequence[int] = (0,)
    """The ranks of the stages of this process's replica."""
    prepared: Prepared | None = None
    ranks: Sequence[int] = ()
    """The rank of each stage of the first replica, once the processes have agreed on the run."""
    directory: Path | None = None
    """The run's directory, once this process knows it."""
    record: RunRecord | None = None
    """The run's record, in the process that records."""
    scheduler: Scheduler | None = None
    """The scheduler, once its stages are built and all processes are ready to train."""
    trainer: Trainer | None = None

    def __init__(self) -> None:
        self.supervisor = Supervisor()
        self.store: RunStore | _Values = _Values()

    @property
    def trained(self) -> Mapping[str, Any]:
        """How far the training came, as the summary has it; known in the process that records."""
        return UNTRAINED if self.trainer is None or self.record is None else self.trainer.summary()

    @property
    def hosts_head(self) -> bool:
        return self.pipeline[-1] == self.rank

    @property
    def records(self) -> bool:
        """Whether this process hosts the head of the first replica: it makes the run directory, and writes the manifests of checkpoints."""
        return self.hosts_head and self.replica == 0

    @property
    def others(self) -> Sequence[int]:
        return [rank for rank in range(self.size) if rank != self.rank]

    def wait(self, name: str) -> Any:
        """Return a value that another process sets."""
        return self.store.get(name)

    @contextmanager
    def control(self) -> Iterator[None]:
        """Within the context, an error of any kind is recorded once there is a run directory, and ends all processes."""
        try:
            yield
        except KeyboardInterrupt:
            if self.record is not None:
                self.record.summarise("interrupted", self.trained, weights=None)
            raise
        except Exception as error:
            if self.record is None:
                raise
            failure = self.record.record_failure(error, self.trained)
            if failure is error:
                raise
            raise failure from error
        finally:
            if self.record is not None:
                self.record.release()

    def stop_requests(self, more: Sequence[int]) -> AbstractContextManager[None]:
        """Within the context, these signals and the usual ones stop all stages before one forward; a second SIGINT stops at once."""

        def stop_at_once() -> NoReturn:
            raise KeyboardInterrupt

        return stop_requests(self.supervisor.ask, stop_at_once, heard=(*REQUESTS, *more))

    def resumption(self, directory: Path | None, given: Given, overrides: Iterable[str]) -> Resumption | None:
        """Return the checkpoint from which a run is resumed; every process has the same one."""
        return None if directory is None else Resumption.find(directory)

    def join(self, prepared: Prepared) -> Prepared:
        """Return the run, of whose data this process reads its part; all processes have agreed on it."""
        return prepared

    def open_directory(self, prepared: Prepared, resumption: Resumption | None) -> None:
        """Give the run its directory: the process that records creates one, or opens that of a resumed run, and tells the others.

        Raises:
            RunFailed: this process cannot see the directory, and checkpoints are to be written there.
        """
        self.record = RunRecord.opened(prepared, resumption)
        self.directory = self.record.directory

    def build(self, prepared: Prepared) -> Scheduler:
        """Build the stages of this process, and connect them with all others; all processes call it at the same time."""
        return Scheduler(
            prepared.executors(), supervisor=self.supervisor, policy=prepared.policy, global_clip=prepared.global_clip
        )

    def another_connection(self) -> RunStore | _Values:
        """Return the store for a thread."""
        return self.store

    def blind(self) -> Sequence[str]:
        """Return the processes that cannot see the run directory."""
        return ()

    # --- called by the training loop ----------------------------------------------------------------------------------

    def exchange_meters(self, epoch: int, meters: Meters) -> None:
        """Merge the meters of other replicas' heads into those of the first replica's."""
        if self.hosts_head and self.replica > 0:
            self.store.set(f"meters/{epoch}/{self.replica}", meters.sums())
        elif self.hosts_head:
            for other in range(1, self.size // len(set(self.pipeline))):
                meters.merge(self.wait(f"meters/{epoch}/{other}"))

    def gather(self, name: str, own: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the tensors of all stages in the process that records, under a name that is used once in a run; elsewhere its own."""
        return own

    def text_of_recorder(self, name: str, own: str) -> str:
        """Return a text of the process that records, under a name that is used once in a run."""
        if self.records:
            self.store.set(name, own)
        return own if self.records else str(self.wait(name))

    def publish(self, trained: Mapping[str, Any]) -> None:
        """Publish how far the training came, in case this process is killed: another process then writes the summary."""
        if self.record is not None:
            self.store.set("trained", trained)

    # --- the end ------------------------------------------------------------------------------------------------------

    def gather_measured(self, own: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return what all processes have measured, in the order of ranks; [] in a process that does not record."""
        self.store.set(f"measured/{self.rank}", own)
        return [self.wait(f"measured/{rank}") for rank in range(self.size)] if self.records else []

    def leave(self, *, interrupted: bool) -> None:
        """End together with the other processes, when everything is written."""


class OneOfSeveral(RunProcess):
    def __init__(self, rank_info: RankInfo) -> None:
        """Connect with the other processes, and return when all are there."""
        super().__init__()
        # Streams that share a hardware queue wait for each other; CUDA reads it once, and has 8 queues without it and 32 at most.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
        self.world = World(rank_info)
        self.world.rendezvous()
        self.size, self.rank, self.store = self.world.size, self.world.rank, self.world.store
        self.waker = Waker()
        self.supervisor = self.watchdog = Watchdog(self.world, self.waker)
        self.world.check = self.watchdog.check
        started()
        self.end = ProcessEnd(self.world, self.watchdog)
        self.watchdog.on_stuck = lambda failure: self.end.end_at_once(failure, self)

    def wait(self, name: str) -> Any:
        return self.world.wait(name)

    @contextmanager
    def control(self) -> Iterator[None]:
        """Signals are handed on to all processes, and a second SIGINT ends this one at once."""
        requests = stop_requests(
            self.watchdog.ask,
            lambda: hard_exit(Interrupted.exit_code),
            ends_process=True,  # its launcher may send signals, because another process ended a moment before
        )
        with requests:
            try:
                yield
            except (Interrupted, FailedOnAnotherProcess):
                raise
            except Exception as error:  # noqa: BLE001  the other processes must know of any error
                self.end.fail(error, self)
            finally:
                if self.record is not None:
                    self.record.release()
                self.world.abort_groups()

    def join(self, prepared: Prepared) -> Prepared:
        agree(self.world, prepared)
        watchdog, each = self.watchdog, self.size // prepared.spec.partition.replicas
        self.replica = self.rank // each
        self.pipeline = tuple(self.replica * each + process for process in prepared.ranks)
        watchdog.stages = tuple(
            tuple(stage for stage, rank in enumerate(prepared.ranks, start=1) if rank == at % each)
            for at in range(self.size)
        )
        watchdog.limit_seconds = prepared.spec.run.watchdog
        part: Part = "all" if self.pipeline[0] == self.rank else "targets" if self.hosts_head else "nothing"
        return attrs.evolve(prepared, opened=prepared.opened.read_in_part(part, self.replica))

    def resumption(self, directory: Path | None, given: Given, overrides: Iterable[str]) -> Resumption | None:
        """Rank 0 chooses the latest complete checkpoint. A run that its launcher restarts continues from there, unless it has ended for good."""
        world, restarts, begun = self.world, self.world.rank_info.restarts, None
        if restarts and (code := world.launch.get("final")) is not None:
            raise Interrupted if code == Interrupted.exit_code else FailedOnAnotherProcess(code)
        if restarts and directory is None:
            name, spec = world.launch.get("directory"), load(given, overrides).spec
            begun = None if name is None or spec is None else run_directory(spec.run.directory, name)
            directory = begun
        if world.rank == 0:
            there = directory is not None and checkpoint.numbers(directory)
            found = Resumption.find(directory) if directory is not None and there else None
            if found is None and begun is not None:  # this attempt makes a directory of its own
                shutil.rmtree(begun, ignore_errors=True)
            if restarts:
                since = "the start" if found is None else f"the latest checkpoint in {directory}"
                sys.stderr.write(printable(f"restart {restarts}, from {since}\n"))
            world.store.set("resume", [] if found is None else [found.directory.name, found.at])
            return found
        chosen = world.wait("resume")
        if not chosen:
            return None
        if directory is None or directory.name != chosen[0] or chosen[1] not in checkpoint.numbers(directory):
            raise RunFailed(
                f"rank {world.rank} on {world.own.host} cannot see the checkpoint of {chosen[0]} before forward {chosen[1]}",
                hint="on several machines, a run can only be resumed if all of them share run.directory",
            )
        return Resumption.find(directory, chosen[1])

    def open_directory(self, prepared: Prepared, resumption: Resumption | None) -> None:
        world, directory = self.world, None if resumption is None else resumption.directory
        if self.records:
            self.record = RunRecord.opened(prepared, resumption, self.size)
            self.directory = directory = self.record.directory
            world.store.set("directory", directory.name)
        name = world.wait("directory")
        world.launch.set("directory", name)
        if directory is None:
            directory = run_directory(prepared.spec.run.directory, name)
        self.directory = directory
        sees, spec = directory is not None and directory.is_dir(), prepared.spec.checkpoint
        world.store.set(f"sees/{self.rank}", sees)
        if not (sees or spec.every is spec.best is None):
            raise RunFailed(
                f"rank {self.rank} on {world.own.host} cannot see the run directory {directory}",
                hint="set run.directory to a folder that all machines share: checkpoints are written there",
            )
        beside = int(os.environ.get("LOCAL_WORLD_SIZE") or self.size)
        first = not self.records and os.environ.get("LOCAL_RANK") == "0"
        if first and self.ranks[-1] not in range(self.rank, self.rank + beside):
            host = world.neighbours[self.ranks[-1]].host  # without this line, the launcher here would seem to hang
            said = f"rank {self.rank} of {self.size} trains; rank {self.ranks[-1]} on {host} prints the progress"
            sys.stderr.write(printable(f"{said}\n"))

    def another_connection(self) -> RunStore:
        return self.world.another_connection()

    def blind(self) -> Sequence[str]:
        blind = [rank for rank in range(self.size) if not self.world.wait(f"sees/{rank}")]
        return [f"rank {rank} on {self.world.neighbours[rank].host}" for rank in blind]

    def build(self, prepared: Prepared) -> Scheduler:
        executors = prepared.executors(self._own_programs(prepared))
        self.world.connect()
        channels = open_channels(
            prepared.programs,
            self.pipeline,
            self.world,
            waker=self.waker,
            peer_lost=self.watchdog.lost,
            transport=prepared.spec.run.transport,
            device=executors[0].program.device,
        )
        self.world.wait_for_all("channels")
        partition, replicas = prepared.spec.partition, None
        if partition.replicas > 1:
            each = self.size // partition.replicas
            replicas = Replicas(executors, range(self.rank % each, self.size, each), self.watchdog)
        return Scheduler(
            executors,
            channels,
            size=self.size,
            supervisor=self.watchdog,
            policy=prepared.policy,
            global_clip=prepared.global_clip,
            replicas=replicas,
        )

    def _own_programs(self, prepared: Prepared) -> Sequence[StageProgram]:
        own = [program for program, rank in zip(prepared.programs, self.pipeline, strict=True) if rank == self.rank]
        if not prepared.on_cuda:
            return own
        self.world.store.set(f"gpus/{self.rank}", visible_gpus())
        visible = [self.world.wait(f"gpus/{rank}") for rank in range(self.size)]
        gpu = gpu_of(self.rank, visible, [process.host for process in self.world.neighbours])
        torch.cuda.set_device(gpu)
        return [attrs.evolve(program, device=f"cuda:{gpu}") for program in own]

    def stop_requests(self, more: Sequence[int]) -> AbstractContextManager[None]:
        """`control` hands on the usual signals from the start."""
        return stop_requests(self.watchdog.ask, lambda: None, insistent=(), ends_process=True, heard=more)

    def gather(self, name: str, own: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        found = self.world.gather(name, own, self.ranks)
        self.watchdog.check()
        return found

    def gather_measured(self, own: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """From here on nothing is needed of another process (`ProcessEnd`)."""
        of_all = super().gather_measured(own)
        if self.records:
            self.world.store.set("measured", True)
        self.world.wait("measured")
        self.watchdog.on_stuck = lambda _: None  # whoever is lost from here on ends nothing here
        return of_all

    def leave(self, *, interrupted: bool) -> None:
        if interrupted:
            self.world.launch.set("final", Interrupted.exit_code)
        self.end.leave(self, interrupted=interrupted)


_COMPUTED = "fingerprint"


def agree(world: World, prepared: Prepared) -> None:
    """Refuse a run whose specification, data, or versions of libraries or plugins are not those of rank 0: the bits depend on them."""
    here, rank = {**decisive(prepared), _COMPUTED: prepared.fingerprint.values}, world.rank
    if rank == 0:
        world.store.set("run", here)
        return
    first = world.wait("run")
    differences = [
        f"{name}: {here.get(name, 'nothing')} here, {first.get(name, 'nothing')} on rank 0"
        for name in dict.fromkeys([*here, *first])
        if here.get(name) != first.get(name) and name != _COMPUTED
    ]
    differences += prepared.fingerprint.changes(first[_COMPUTED])
    message = f"rank {rank} and rank 0 run different things: "
    hint = "start the same specification, overrides and versions on every machine"
    if differences:
        raise SpecError([Problem(message=message + difference, hint=hint) for difference in differences[:3]])
