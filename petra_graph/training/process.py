"""What the process of a run does with its other processes: nothing, where it hosts all stages, or as one of several.

The process that hosts the head of the first replica makes the run directory, records, shows progress and saves the
weights. Before anything is trained, every process compares its run with that of rank 0. A run of several processes ends in all of them
together, with everything written, or with the report of its first failure:

    rank 0    has measured ------- waits for "complete" --------------- all have arrived, or a few seconds ---- ends
    rank 1    has measured ------- waits for "complete" ------ X        killed: the run is complete nevertheless
    records   says that all have, writes the summary, says "complete" ------ all have arrived --------------- ends

They wait for one another, since the store may end with the first of them: its launcher has nothing more to do then. A failure is
reported by the process with the head, or by another one if that has gone or there is no run directory yet; the others wait for the report.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import attrs
import torch
import torch.distributed as dist
from torch import Tensor

from petra_graph.errors import (
    FailedOnAnotherProcess,
    Interrupted,
    NoFeasiblePlan,
    PetraGraphError,
    Problem,
    RunFailed,
    RunFailedByPlugin,
    SpecError,
    printable,
)
from petra_graph.record import checkpoint
from petra_graph.record.run_directory import SUMMARY, create_run_directory, locked, read_json, run_directory
from petra_graph.runtime.loop import Scheduler
from petra_graph.runtime.open_channels import open_channels
from petra_graph.runtime.replicas import Replicas
from petra_graph.runtime.store import COMPLETE, RankInfo, RunStore, StoreGone, gpu_of, visible_gpus
from petra_graph.runtime.system import REQUESTS, at_end_of_parent, hard_exit, stop_requests, until
from petra_graph.runtime.watchdog import Failed, Failure, Supervisor, Watchdog
from petra_graph.runtime.world import World
from petra_graph.spec.load_spec import Given, load
from petra_graph.training.identity import agree
from petra_graph.training.prepare import Prepared
from petra_graph.training.resume import Resumption
from petra_graph.training.run_record import RunRecord, problems_of
from petra_graph.training.trainer import Trainer

_END_SECONDS = 5.0
"""The longest that a process waits for the others to arrive at the end."""
_REPORT_SECONDS = 10.0
"""The longest that a process waits for another one's report of a failure."""
_LOOK_SECONDS = 0.01
_ERRORS = {kind.exit_code: kind for kind in (RunFailed, SpecError, NoFeasiblePlan, RunFailedByPlugin)}


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
            self.record = RunRecord.of(directory, prepared, resumption)
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
        """Collect what all processes have measured; from then on none needs another one."""
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
        self.watchdog.on_stuck = self._end_at_once
        self._of_thread = world.another_connection()
        """The store, for the thread that writes checkpoints."""

    @contextmanager
    def control(self) -> Iterator[None]:
        """Signals are handed on to all processes, and a second SIGINT ends this one at once."""
        # Its launcher may send signals because another process ended a moment before: none counts at the end.
        with stop_requests(self.watchdog.ask, lambda: hard_exit(Interrupted.exit_code), ends_process=True):
            try:
                yield
            except (Interrupted, FailedOnAnotherProcess):
                raise
            except Exception as error:  # noqa: BLE001  the other processes must know of any error
                failure = self._failure_of(error)
                if failure.exit_code != RunFailed.exit_code:  # to start it again would change nothing
                    with suppress(RuntimeError):
                        self.world.launch.set("final", failure.exit_code)
                raise self._conclude(failure, self.world.store) from (error if failure.rank == self.rank else None)
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
        if restarts and directory is None:  # the command does not name the directory that an earlier attempt has made
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
        world, replicas = self.world, prepared.spec.partition.replicas
        each = self.size // replicas  # processes of a replica, whose stages lie in the same order in all of them
        pipeline = [prepared.opened.replica * each + rank for rank in prepared.ranks]
        own = [program for program, rank in zip(prepared.programs, pipeline, strict=True) if rank == self.rank]
        if prepared.on_cuda:
            world.store.set(f"gpus/{self.rank}", visible_gpus())
            visible = [world.wait(f"gpus/{rank}") for rank in range(self.size)]
            gpu = gpu_of(self.rank, visible, [process.host for process in world.neighbours])
            torch.cuda.set_device(gpu)
            own = [attrs.evolve(program, device=f"cuda:{gpu}") for program in own]
        executors = prepared.executors(own)
        world.connect()
        device, transport = executors[0].program.device, prepared.spec.run.transport
        channels = open_channels(prepared.programs, pipeline, world, self.watchdog, transport=transport, device=device)
        world.wait_for_all("channels")
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
        """Return when all processes have come to the end, or will not come any more; the loss of one is no failure from here on.

        The watchdog watches until the end, so that no process waits for one that has gone. A request to stop ends the waits.

        Raises:
            Failed: the run has failed before it was complete.
        """
        world, store, watchdog, prepared = self.world, self.world.store, self.watchdog, self.prepared
        directory = self.directory
        assert prepared is not None
        assert directory is not None
        code, lost, asked = Interrupted.exit_code if interrupted else 0, None, list[str]()

        def has_ended() -> bool:
            """Whether the run's last file, its summary, has been written; a run that is resumed begins without one."""
            with suppress(SpecError):
                return bool(read_json(directory / SUMMARY).get("status", "failed") != "failed")
            return False

        with stop_requests(asked.append, lambda: hard_exit(code), ends_process=True):
            try:
                if interrupted:  # a launcher does not start it again, whatever happens from here on
                    world.launch.set("final", code)
                if prepared.records:
                    store.set(COMPLETE, True)
                while store.get(COMPLETE) is None:
                    # Only the process that records has something left to do, and no more once its last file is written.
                    failure = watchdog.failure
                    if (failure is not None and failure.rank == prepared.ranks[-1]) or store.get("reported"):
                        if has_ended():
                            break
                        watchdog.check()
                    time.sleep(_LOOK_SECONDS)
                world.launch.set(COMPLETE, code)
                store.set(f"arrived/{world.rank}", True)
                names = [f"arrived/{rank}" for rank in range(world.size)]
                until(lambda: all(map(store.get, names)) or watchdog.failure or asked, _END_SECONDS)
            except StoreGone as error:  # rank 0, which may keep the store, ends once the run is complete
                if not has_ended():
                    raise
                lost = watchdog.without_store(error)
            watchdog.close()
        lost = watchdog.failure or lost
        if lost is not None and world.rank == self._reporter(lost):
            sys.stderr.write(printable(f"the run is complete, although {lost.problems[0][0]}\n"))
        world.shutdown(store, missing=int(lost is not None))

    # --- the run has failed -------------------------------------------------------------------------------------------

    def _failure_of(self, error: Exception) -> Failure:
        """Return the first failure of the run, which may be another process's: what failed here is told to all."""
        watchdog = self.watchdog
        if isinstance(error, Failed):
            return error.failure
        if isinstance(error, StoreGone | dist.DistError):
            return watchdog.report(watchdog.without_store(error))
        # A specification's problem says its file and line, any other one the rank that met it.
        located = isinstance(error, SpecError)
        own = Failure(
            rank=self.rank,
            problems=[
                (str(attrs.evolve(one, hint="")) if located else f"rank {self.rank}: {one.message}", one.hint)
                for one in problems_of(error)
            ],
            exit_code=error.exit_code if isinstance(error, PetraGraphError) else 1,
            where=None if watchdog.status is None else watchdog.status.record(),
            traceback="".join(traceback.format_exception(error)),
        )
        return watchdog.report(own)

    def _end_at_once(self, failure: Failure) -> NoReturn:
        """End from the watchdog's thread, with its connection, if the main thread does not end; print the report here."""
        raised = self._conclude(failure, self.watchdog.store)
        if isinstance(raised, PetraGraphError):
            sys.stderr.write(f"{raised}\n")
        hard_exit(failure.exit_code)

    def _conclude(self, failure: Failure, store: RunStore) -> PetraGraphError | FailedOnAnotherProcess | Interrupted:
        """Report the failure if this process is to do so, else wait for the report; `store` is a connection that may be broken."""
        prepared = self.prepared
        try:
            if failure.exit_code == Interrupted.exit_code:
                if self.record is not None:
                    self.record.summarise("interrupted", self.trained, weights=None)
                if self.rank == 0 and self.trainer is None:
                    results = "" if self.directory is None else f"; results: {self.directory}"
                    sys.stderr.write(printable(f"interrupted during the start{results}\n"))
                return Interrupted()
            # The process that records may have made the directory, and have died before this one learned of it.
            if self.directory is None and prepared is not None:
                with suppress(RuntimeError):
                    if name := store.get("directory"):
                        self.directory = run_directory(prepared.spec.run.directory, name)
            if self.rank != self._reporter(failure):
                with suppress(RuntimeError):
                    until(lambda: store.get("reported"), _REPORT_SECONDS)
                return FailedOnAnotherProcess(failure.exit_code)

            problems = [Problem(message=message, hint=hint) for message, hint in failure.problems]
            error = _ERRORS.get(failure.exit_code, RunFailed)(problems)
            if self.directory is not None and prepared is not None:
                record = self.record or RunRecord.of(self.directory, prepared)
                # The store may have died with its keeper: then the report says what is known here.
                trained, statuses = self.trained, list[Any]()
                with suppress(RuntimeError):
                    if self.record is None:
                        trained = store.get("trained") or trained
                    statuses += [store.get(f"status/{rank}") for rank in range(self.size)]
                where = {**attrs.asdict(failure), "ranks": statuses}
                record.record_failure(error, trained, failure.traceback or f"{error}\n", where)
            with suppress(RuntimeError):
                store.set("reported", True)
            return error
        finally:
            self.watchdog.retire()
            self.world.shutdown(store, missing=int(failure.lost))

    def _reporter(self, failure: Failure) -> int:
        """Return the process that tells of a failure."""
        prepared, reporter = self.prepared, failure.rank
        if prepared is not None and self.directory is not None:
            reporter = prepared.ranks[-1]
        return int(reporter == 0) if failure.lost and reporter == failure.rank else reporter
