"""What the process of a run does with its other processes: nothing, where it hosts all stages, or as one of several.

The process that hosts the head of the first replica makes the run directory, records, shows progress and saves the
weights. Before anything is trained, every process compares its run with that of rank 0. A failure anywhere ends all processes (`end`).
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import attrs
import torch
from torch import Tensor

from petra_graph.errors import FailedOnAnotherProcess, Interrupted, Problem, RunFailed, SpecError, printable
from petra_graph.record import checkpoint
from petra_graph.record.run_directory import create_run_directory, locked, run_directory
from petra_graph.runtime.loop import Scheduler
from petra_graph.runtime.open_channels import open_channels
from petra_graph.runtime.replicas import Replicas
from petra_graph.runtime.store import COMPLETE, RankInfo, RunStore, gpu_of, visible_gpus
from petra_graph.runtime.system import REQUESTS, at_end_of_parent, hard_exit, stop_requests
from petra_graph.runtime.watchdog import Supervisor, Watchdog
from petra_graph.runtime.world import World
from petra_graph.spec.load_spec import Given, load
from petra_graph.training import end
from petra_graph.training.identity import decisive, list_changes
from petra_graph.training.prepare import Prepared
from petra_graph.training.resume import Resumption
from petra_graph.training.run_record import RunRecord
from petra_graph.training.trainer import Trainer


class RunProcess:
    """The process of a run that hosts all stages.

    It holds what the run has so far, which is needed if the run fails: None before the step that makes it.
    """

    rank, size = 0, 1
    prepared: Prepared | None = None
    directory: Path | None = None
    """The run's directory, once this process knows it."""
    record: RunRecord | None = None
    """The run's record, in the process that records."""
    trainer: Trainer | None = None

    def __init__(self) -> None:
        self.supervisor = Supervisor()
        self.held = ExitStack()
        """The lock of the run's directory, in the process that records: no other process resumes the run meanwhile."""

    @property
    def trained(self) -> Mapping[str, Any]:
        """How far the training came, as the summary has it; known in the process that records."""
        return {} if self.trainer is None or self.record is None else self.trainer.summary()

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
            raise self.record.record_failure(error, self.trained)  # noqa: B904  it has its cause
        finally:
            self.held.close()

    def stop_requests(self, more: Sequence[int]) -> AbstractContextManager[None]:
        """Within the context, these signals and the usual ones stop all stages before one forward; a second SIGINT stops at once."""

        def stop_at_once() -> NoReturn:
            raise KeyboardInterrupt

        return stop_requests(self.supervisor.ask, stop_at_once, heard=(*REQUESTS, *more))

    def resumption(self, directory: Path | None, given: Given, overrides: Sequence[str]) -> Resumption | None:
        """Return the checkpoint from which a run is resumed; every process has the same one."""
        return None if directory is None else Resumption.find(directory)

    def join(self, prepared: Prepared) -> None:
        """Return when all processes have prepared the same run."""

    def open_directory(self, prepared: Prepared, resumption: Resumption | None) -> None:
        """Give the run its directory: the process that records creates one, or opens that of a resumed run, and tells the others.

        Raises:
            RunFailed: another run writes there, or this process cannot see the directory.
        """
        spec, directory = prepared.spec, None if resumption is None else resumption.directory
        if prepared.records:
            directory = directory or create_run_directory(spec.run.directory, spec.name)
            self.held.enter_context(locked(directory))
            self.record = RunRecord.of(directory, prepared)
        name = self.tell("directory", "" if directory is None else directory.name)
        self.directory = directory = directory or run_directory(spec.run.directory, name)
        if not directory.is_dir():
            raise RunFailed(
                f"rank {self.rank} on {socket.gethostname()} cannot see the run directory {directory}",
                hint="set run.directory to a folder that all machines share: checkpoints are written there",
            )

    def build(self, prepared: Prepared) -> Scheduler:
        """Build the stages of this process, and connect them with all others; all processes call it at the same time."""
        return Scheduler(prepared.executors(), supervisor=self.supervisor, policy=prepared.policy)

    # Names of what processes tell one another are used once in a run.

    def tell(self, name: str, own: str) -> str:
        """Return the text of the process that records."""
        return own

    def collect(self, name: str, own: Any, *, in_thread: bool = False) -> Sequence[Any]:
        """Return what each process gives, as JSON that is not null, in the order of ranks; [] where this process does not record."""
        return [own]

    def gather(self, name: str, own: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the tensors of all stages in the process that records; elsewhere its own."""
        return own

    def publish(self, trained: Mapping[str, Any]) -> None:
        """Publish how far the training came, in case this process is killed: another process then writes the summary."""

    def gather_measured(self, own: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Collect what all processes have measured; from then on none needs another one (`end`)."""
        return [own]

    def leave(self, *, interrupted: bool) -> None:
        """End together with the other processes, when everything is written."""


class OneOfSeveral(RunProcess):
    def __init__(self, rank_info: RankInfo) -> None:
        """Connect with the other processes, and return when all are there."""
        super().__init__()
        # Streams that share a hardware queue wait for each other; CUDA reads it once, and has 8 queues without it and 32 at most.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
        self.world = world = World(rank_info)
        world.rendezvous()
        self.size, self.rank = world.size, world.rank
        self.supervisor = self.watchdog = Watchdog(world)
        at_end_of_parent(0)  # from now on the watchdog looks
        self.watchdog.on_stuck = lambda failure: end.end_at_once(self, failure)
        self._of_thread = world.another_connection()
        """The store, for the thread that writes checkpoints."""

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
                end.fail(self, error)
            finally:
                self.held.close()
                self.world.abort_groups()

    def stop_requests(self, more: Sequence[int]) -> AbstractContextManager[None]:
        """`control` hands on the usual signals from the start."""
        return stop_requests(self.watchdog.ask, lambda: None, insistent=(), ends_process=True, heard=more)

    def resumption(self, directory: Path | None, given: Given, overrides: Sequence[str]) -> Resumption | None:
        """Rank 0 chooses the latest complete checkpoint. A run that its launcher restarts continues from there, unless it has ended for good."""
        world, restarts, begun = self.world, self.world.rank_info.restarts, None
        for ended in ("final", COMPLETE) if restarts else ():
            if (code := world.launch.get(ended)) is not None:
                raise Interrupted if code == Interrupted.exit_code else FailedOnAnotherProcess(code)
        if restarts and directory is None:
            name, spec = world.launch.get("directory"), load(given, overrides).spec
            directory = begun = None if name is None or spec is None else run_directory(spec.run.directory, name)
        if world.rank == 0:
            found = Resumption.find(directory) if directory is not None and checkpoint.numbers(directory) else None
            if found is None and begun is not None:  # this attempt makes a directory of its own
                shutil.rmtree(begun, ignore_errors=True)
            if restarts:
                since = "the start" if found is None else f"the latest checkpoint in {directory}"
                sys.stderr.write(printable(f"restart {restarts}, from {since}\n"))
            world.store.set("resume", [] if found is None else [found.directory.name, found.at])
            return found
        if not (chosen := world.wait("resume")):
            return None
        if directory is None or directory.name != chosen[0] or chosen[1] not in checkpoint.numbers(directory):
            raise RunFailed(
                f"rank {world.rank} on {world.own.host} cannot see the checkpoint of {chosen[0]} before forward {chosen[1]}",
                hint="on several machines, a run can only be resumed if all of them share run.directory",
            )
        return Resumption.find(directory, chosen[1])

    def join(self, prepared: Prepared) -> None:
        agree(self.world, prepared)
        each = self.size // prepared.spec.partition.replicas
        self.watchdog.stages = [
            [stage for stage, rank in enumerate(prepared.ranks, start=1) if rank == at % each]
            for at in range(self.size)
        ]
        self.watchdog.limit_seconds = prepared.spec.run.watchdog

    def open_directory(self, prepared: Prepared, resumption: Resumption | None) -> None:
        super().open_directory(prepared, resumption)
        assert self.directory is not None
        self.world.launch.set("directory", self.directory.name)

    def build(self, prepared: Prepared) -> Scheduler:
        world, replicas, pipeline = self.world, prepared.spec.partition.replicas, prepared.pipeline
        own = [program for program, rank in zip(prepared.programs, pipeline, strict=True) if rank == self.rank]
        if prepared.on_cuda:
            world.store.set(f"gpus/{self.rank}", visible_gpus())
            visible = [world.wait(f"gpus/{rank}") for rank in range(self.size)]
            gpu = gpu_of(self.rank, visible, [process.host for process in world.neighbours])
            torch.cuda.set_device(gpu)
            own = [attrs.evolve(program, device=f"cuda:{gpu}") for program in own]
        executors = prepared.executors(own)
        world.connect()
        channels = open_channels(
            prepared.programs,
            pipeline,
            world,
            self.watchdog,
            transport=prepared.spec.run.transport,
            device=executors[0].program.device,
        )
        world.wait_for_all("channels")
        each = self.size // replicas
        same_stages = range(self.rank % each, self.size, each)
        return Scheduler(
            executors,
            channels,
            supervisor=self.watchdog,
            policy=prepared.policy,
            replicas=Replicas(executors, same_stages, self.watchdog) if replicas > 1 else None,
        )

    def tell(self, name: str, own: str) -> str:
        if self.record is None:
            return str(self.world.wait(name))
        self.world.store.set(name, own)
        return own

    def collect(self, name: str, own: Any, *, in_thread: bool = False) -> Sequence[Any]:
        store: RunStore = self._of_thread if in_thread else self.world.store
        store.set(f"{name}/{self.rank}", own)
        if self.record is None:
            return []
        return [store.wait(f"{name}/{rank}", check=self.watchdog.check) for rank in range(self.size)]

    def gather(self, name: str, own: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        assert self.prepared is not None
        with self.watchdog.answered(name):
            found = self.world.gather(name, own, self.prepared.ranks)
        self.watchdog.check()
        return found

    def publish(self, trained: Mapping[str, Any]) -> None:
        if self.record is not None:
            self.world.store.set("trained", trained)

    def gather_measured(self, own: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        of_all = self.collect("measured", own)
        self.tell("measured", "by all")
        self.watchdog.on_stuck = lambda _: None  # whoever is lost from here on ends nothing here
        return of_all

    def leave(self, *, interrupted: bool) -> None:
        end.leave(self, interrupted=interrupted)


def agree(world: World, prepared: Prepared) -> None:
    """Refuse a run whose specification, data, or versions of libraries or plugins are not those of rank 0: the bits depend on them."""
    here, rank = decisive(prepared), world.rank
    if rank == 0:
        world.store.set("run", [here, prepared.fingerprint.values])
        return
    first, computed = world.wait("run")
    differences = [*list_changes(first, here, ("on rank 0", "here")), *prepared.fingerprint.changes(computed)]
    message = f"rank {rank} and rank 0 run different things: "
    hint = "start the same specification, overrides and versions on every machine"
    if differences:
        raise SpecError([Problem(message=message + difference, hint=hint) for difference in differences[:3]])
