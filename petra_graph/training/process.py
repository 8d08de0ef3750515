"""What the process of a run does with its other processes: nothing, where it hosts all stages, or as one of several.

The process that hosts the head of the first replica records: it makes the run directory, shows progress and saves the weights. Before
anything is trained, every process compares its run with that of rank 0. All wait for the word that everything is written. It also reports
a failure, or another process does where it has gone.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import attrs
import torch
import torch.distributed as dist
from torch import Tensor

from petra_graph import errors
from petra_graph.errors import FailedOnAnotherProcess, Interrupted, PetraGraphError, Problem, RunFailed, SpecError
from petra_graph.record import checkpoint
from petra_graph.record.run_directory import SUMMARY, create_run_directory, locked, read_json, run_directory
from petra_graph.runtime.loop import Scheduler
from petra_graph.runtime.open_channels import open_channels
from petra_graph.runtime.replicas import Replicas
from petra_graph.runtime.store import FINAL, RankInfo, RunStore, StoreGone, gpu_of, visible_gpus
from petra_graph.runtime.system import at_end_of_parent, hard_exit, stop_requests
from petra_graph.runtime.watchdog import Failed, Failure, Supervisor, Watchdog
from petra_graph.runtime.world import World
from petra_graph.training.checkpoint import Resumption
from petra_graph.training.identity import agree
from petra_graph.training.prepare import Prepared
from petra_graph.training.run_record import RunRecord, problems_of
from petra_graph.training.trainer import Trainer


class RunProcess:
    """The process of a run that hosts all stages; it holds what the run has so far, for its record if it fails."""

    rank, size = 0, 1
    prepared: Prepared | None = None
    directory: Path | None = None
    record: RunRecord | None = None  # in the process that records
    trainer: Trainer | None = None

    def __init__(self) -> None:
        self.supervisor = Supervisor()
        # The lock of the run's directory, in the process that records, and the handlers of signals.
        self.held = ExitStack()

    @property
    def trained(self) -> Mapping[str, Any]:
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

    def resumption(self, directory: Path | None) -> Resumption | None:
        """Return the checkpoint from which a run is resumed; every process has the same one."""
        return None if directory is None else Resumption.find(directory)

    def join(self, prepared: Prepared) -> None:
        """Return when all processes have prepared the same run: from now on a request to stop stops all stages before one forward."""
        at_once = partial(signal.default_int_handler, signal.SIGINT, None)
        self.held.enter_context(stop_requests(self.supervisor.ask, at_once))

    def open_directory(self, prepared: Prepared, resumption: Resumption | None) -> None:
        """Give the run its directory: the process that records creates one, or opens that of a resumed run, and tells the others."""
        spec, directory = prepared.spec, None if resumption is None else resumption.directory
        if prepared.records:
            directory = directory or create_run_directory(spec.run.directory, spec.name)
            self.held.enter_context(locked(directory))
            self.record = RunRecord(directory, prepared, resumption)
        name = self.tell("directory", "" if directory is None else directory.name)
        self.directory = directory = directory or run_directory(spec.run.directory, name)
        if not directory.is_dir():
            message = f"rank {self.rank} on {socket.gethostname()} cannot see the run directory {directory}"
            raise RunFailed(message, "set run.directory to a folder that all machines share")

    def build(self, prepared: Prepared) -> Scheduler:
        """Build the stages of this process, and connect them with all others; all processes call it at the same time."""
        return Scheduler(prepared.executors(), supervisor=self.supervisor, policy=prepared.policy)

    def tell(self, name: str, own: Any) -> Any:
        """Return what the process that records gives, as JSON; names of what processes tell one another are used once in a run."""
        return own

    def collect(self, name: str, own: Any, *, in_thread: bool = False) -> Sequence[Any]:
        """Return what each process gives, as JSON that is not null, in the order of ranks; [] where this process does not record."""
        return [own]

    def gather(self, name: str, own: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the tensors of all stages in the process that records; elsewhere its own."""
        return own

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
        self._of_thread = world.another_connection()  # for the thread that writes checkpoints

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
                        self.world.launch.set(FINAL, failure.exit_code)
                raise self._conclude(failure, self.world.store) from (error if failure.rank == self.rank else None)
            finally:
                self.held.close()
                self.world.abort_groups()

    def resumption(self, directory: Path | None) -> Resumption | None:
        """Rank 0 chooses the latest complete checkpoint. A run that its launcher restarts continues from there, unless it has ended for good."""
        world, begun = self.world, None
        if world.rank_info.restarts:
            if (code := world.launch.get(FINAL)) is not None:
                raise Interrupted if code == Interrupted.exit_code else FailedOnAnotherProcess(code)
            if directory is None and (begun := world.launch.get(f"directory/{world.rank}")):  # by an earlier attempt
                directory = Path(begun)
                if not checkpoint.numbers(directory) and read_json(directory / SUMMARY).get("status") == "done":
                    raise FailedOnAnotherProcess(0)  # it was killed before all had heard of its end
        if world.rank == 0:
            if begun is not None and not checkpoint.numbers(Path(begun)):
                shutil.rmtree(begun, ignore_errors=True)  # this attempt makes a directory of its own
                directory = None
            found = None if directory is None else Resumption.find(directory)
            world.store.set("resume", [] if found is None else [found.directory.name, found.manifest.at])
            return found
        if not (chosen := world.wait("resume")):
            return None
        assert directory is not None, "every process had one before there was a checkpoint"
        directory = directory.with_name(chosen[0])
        return Resumption(directory=directory, manifest=checkpoint.read_manifest(directory, chosen[1]))

    def join(self, prepared: Prepared) -> None:
        agree(self.world, prepared)
        each, ranks = self.size // prepared.spec.partition.replicas, list(enumerate(prepared.ranks, start=1))
        self.watchdog.stages = [[stage for stage, rank in ranks if rank == at % each] for at in range(self.size)]
        self.watchdog.limit_seconds = prepared.spec.run.watchdog

    def open_directory(self, prepared: Prepared, resumption: Resumption | None) -> None:
        super().open_directory(prepared, resumption)
        assert self.directory is not None
        self.world.launch.set(f"directory/{self.rank}", str(self.directory.absolute()))

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
        shared = Replicas(executors, same_stages, self.watchdog) if replicas > 1 else None
        return Scheduler(executors, channels, supervisor=self.watchdog, policy=prepared.policy, replicas=shared)

    def tell(self, name: str, own: Any) -> Any:
        if self.record is None:
            return self.world.wait(name)
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

    def leave(self, *, interrupted: bool) -> None:
        if interrupted or self.record is not None:  # a launcher does not start it again, whatever happens from here on
            self.world.launch.set(FINAL, Interrupted.exit_code if interrupted else 0)
        self.tell("complete", "by the process that records")  # until then a process that has gone fails the run
        self.watchdog.close()
        self.world.shutdown(self.world.store)

    def _failure_of(self, error: Exception) -> Failure:
        """Return the first failure of the run, which may be another process's: what failed here is told to all."""
        watchdog = self.watchdog
        if isinstance(error, Failed):
            return error.failure
        if isinstance(error, StoreGone | dist.DistError):
            return watchdog.report(watchdog.without_store(error))
        # A specification's problem says its file and line, any other one the rank that met it.
        located, where = isinstance(error, SpecError), f"rank {self.rank}: "
        said = [
            (str(attrs.evolve(one, hint="")) if located else where + one.message, one.hint)
            for one in problems_of(error)
        ]
        ends_training = located and self.directory is not None  # the run has failed then, as in one process
        code = error.exit_code if isinstance(error, PetraGraphError) and not ends_training else 1
        text = "".join(traceback.format_exception(error))
        return watchdog.report(Failure(rank=self.rank, problems=said, exit_code=code, traceback=text))

    def _end_at_once(self, failure: Failure) -> NoReturn:
        """End from the watchdog's thread, with its connection, if the main thread does not end; print the report here."""
        raised = self._conclude(failure, self.watchdog.store)
        if isinstance(raised, PetraGraphError):
            sys.stderr.write(f"{raised}\n")
        hard_exit(failure.exit_code)

    def _conclude(self, failure: Failure, store: RunStore) -> PetraGraphError | FailedOnAnotherProcess | Interrupted:
        """Report the failure if this process is to do so; `store` is a connection that may be broken."""
        prepared, directory, reporter = self.prepared, self.directory, failure.rank
        if prepared is not None and directory is not None:
            reporter = prepared.ranks[-1]
        if failure.lost and reporter == failure.rank:
            reporter = int(reporter == 0)
        try:
            if failure.exit_code == Interrupted.exit_code:
                if self.record is not None:
                    self.record.summarise("interrupted", self.trained, weights=None)
                return Interrupted()
            if self.rank != reporter:
                return FailedOnAnotherProcess(failure.exit_code)
            problems = [Problem(message=message, hint=hint) for message, hint in failure.problems]
            kinds = {kind.exit_code: kind for kind in (SpecError, errors.NoFeasiblePlan, errors.RunFailedByPlugin)}
            error = kinds.get(failure.exit_code, RunFailed)(problems)
            if prepared is not None and directory is not None:
                record, trained = self.record or RunRecord(directory, prepared), self.trained
                with suppress(RuntimeError):  # the store may have died with its keeper
                    trained = trained or store.get("trained") or {}
                record.record_failure(error, trained, failure.traceback or f"{error}\n")
            return error
        finally:
            self.watchdog.retire()
            self.world.shutdown(store, missing=int(failure.lost))
