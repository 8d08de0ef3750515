"""A run from its specification to its directory: one path, in one process as in one of several."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

from attrs import define, field, frozen

from petra_graph.errors import Interrupted
from petra_graph.measure.uncompiled import uncompiled
from petra_graph.record.metrics import Metrics
from petra_graph.record.weights import WEIGHTS
from petra_graph.registry.listener import Listener
from petra_graph.runtime.control.heap import keep_freed_memory
from petra_graph.runtime.control.rank_info import rank_info_from
from petra_graph.runtime.control.signals import numbers_of, stop_requests
from petra_graph.runtime.control.start_up import REQUESTS
from petra_graph.runtime.scheduler.context import ProcessContext, SingleProcess
from petra_graph.runtime.scheduler.scheduler import Scheduler
from petra_graph.spec.load import Given
from petra_graph.training.checkpoints.checkpointing import Checkpoints
from petra_graph.training.checkpoints.initial_weights import load_initial
from petra_graph.training.checkpoints.resumption import Resumption
from petra_graph.training.loop.callbacks import Callbacks, kept_by_companions
from petra_graph.training.loop.trainer import Trainer
from petra_graph.training.prepared_run import Prepared, fix_arithmetic, prepare
from petra_graph.training.processes.one_of_several import Worker
from petra_graph.training.processes.run_process import Peers
from petra_graph.training.record.process_measurements import measured, peak_bytes
from petra_graph.training.record.run_loggers import open_loggers
from petra_graph.training.record.run_record import RunRecord, Summary, open_record
from petra_graph.training.start_reporter import StartReporter


@frozen(kw_only=True)
class RunResult:
    """The end of a run, done or interrupted; a failed run raises."""

    summary: Summary | None
    """None where another process records."""
    interrupted: Interrupted | None


@uncompiled()
def run(given: Given, overrides: Iterable[str], listener: Listener, resume: Path | None = None) -> RunResult:
    """Train a specification: all of it, or the stages of one of the processes that torchrun started.

    Args:
        given: the specification.
        overrides: values set on the command line.
        listener: observes the run.
        resume: the directory of a run, which goes on there.

    Raises:
        SpecError, PluginError: before anything is written.
        RunFailed: afterwards; the run directory says why, and the error has its summary.
        FailedOnAnotherProcess: another process raises one of these.
    """
    rank_info = rank_info_from(os.environ)
    process = OnlyProcess() if rank_info is None else Worker(rank_info)
    with ExitStack() as written, process.control():
        resumption = process.resumption(resume, given, overrides)
        prepared = _prepared(process, given, overrides, resumption, restarts=resume is None)
        fix_arithmetic(prepared)
        keep_freed_memory()
        with process.stop_requests(numbers_of(prepared.spec.checkpoint.signal)):
            record = process.create_record(prepared, resumption)
            if record is not None:
                written.callback(record.release)
                record.write_inputs(prepared)
            since = None if resumption is None else resumption.metrics
            with Metrics(record.directory, since) if record else nullcontext() as metrics:
                if metrics is not None:
                    open_loggers(prepared, metrics, since)
                bytes_before = peak_bytes()
                scheduler = process.scheduler(prepared)
                callbacks = Callbacks.attached(prepared.callbacks, scheduler.executors, leads=record is not None)
                observer = listener if record else Listener()
                trainer = Trainer(prepared, scheduler, metrics, observer, process, callbacks)
                notes = _begin(prepared, scheduler, trainer, resumption)
                checkpoints = process.checkpoints(trainer, resumption)
                scheduler.cuts, scheduler.allowed_cut = checkpoints, checkpoints.plan.allowed
                if record is not None:
                    record.trainer = trainer
                    changes = [f"--set {text}" for text in overrides] if resume is not None else []
                    listener.started(record.begins(resumption, [*changes, *notes, *checkpoints.notes]))
                    callbacks.started(record.run)
                interrupted = trainer.run()
                _write_weights(process, record, trainer)
                if interrupted is None:
                    checkpoints.save_done()
                else:
                    checkpoints.save_halted(scheduler)
                checkpoints.close()
                if metrics is not None:
                    metrics.close()
                own = measured(scheduler, trainer, rank=process.rank, peak_bytes_before=bytes_before)
                all_measured = process.gather_measured(own)
                trainer.warnings.collect()
            if record is not None:
                record.note_measured(all_measured)
            status = "interrupted" if interrupted else "done"
            summary = None if record is None else record.summarise(status)
            process.leave(interrupted=interrupted is not None)
    return RunResult(summary=summary, interrupted=interrupted)


def _prepared(
    process: OnlyProcess | Worker,
    given: Given,
    overrides: Iterable[str],
    resumption: Resumption | None,
    *,
    restarts: bool,
) -> Prepared:
    """Prepare a run, and compare it with the checkpoint that it goes on from; a launcher that restarts gives its spec anew."""
    folders = None if resumption is None else resumption.manifest.folders
    prepared = process.join(prepare(given, overrides, process.size, folders, process.start_reporter()))
    if resumption is not None:
        resumption.check(prepared)
        if restarts:
            resumption.refuse_other(prepared)
    return prepared


@define
class OnlyProcess(Peers):
    """This process hosts all stages; `Worker` has the same methods."""

    size: int = 1
    rank: int = 0
    supervisor: SingleProcess = field(factory=SingleProcess)
    record: RunRecord | None = None

    @contextmanager
    def control(self) -> Iterator[None]:
        """Within the context, record errors of any kind once there is a run directory."""
        try:
            yield
        except KeyboardInterrupt:
            if self.record is not None:
                self.record.summarise("interrupted", weights=None)
            raise
        except Exception as error:
            failure = error if self.record is None else self.record.failed(error)
            if failure is error:
                raise
            raise failure from error

    def stop_requests(self, more: Sequence[int]) -> AbstractContextManager[None]:
        """Within the context, a signal stops all stages before one forward, and a second SIGINT stops at once."""
        return stop_requests(self._request, _stop_at_once, heard=(*REQUESTS, *more))

    def _request(self, signal_name: str) -> None:
        self.supervisor.stop_signal = signal_name

    def start_reporter(self) -> StartReporter:
        """Return what says where the start takes long."""
        return StartReporter()

    def join(self, prepared: Prepared) -> Prepared:
        """Return the run: this process reads all data."""
        return prepared

    def resumption(self, directory: Path | None, given: Given, overrides: Iterable[str]) -> Resumption | None:
        """Return the checkpoint that a run goes on from."""
        return None if directory is None else Resumption.find(directory)

    def create_record(self, prepared: Prepared, resumption: Resumption | None) -> RunRecord:
        """Create the run directory, or open that of a run that goes on."""
        self.record = open_record(prepared, resumption)
        return self.record

    def checkpoints(self, trainer: Trainer, resumption: Resumption | None) -> Checkpoints:
        """Return the checkpoints of all stages."""
        assert self.record is not None
        at = None if resumption is None else resumption.skips
        return Checkpoints(
            prepared=trainer.prepared,
            directory=self.record.directory,
            trainer=trainer,
            supervisor=self.supervisor,
            folders=trainer.prepared.checked.loaded.folders if resumption is None else resumption.manifest.folders,
            resumed_at=at,
        )

    def scheduler(self, prepared: Prepared) -> Scheduler:
        """Build all stages, and connect them by local channels."""
        supervisor, clip = self.supervisor, prepared.global_clip
        context = ProcessContext(supervisor=supervisor, policy=prepared.policy, global_clip=clip)
        return Scheduler(prepared.executors(), context=context)

    def gather_measured(self, own: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return what all processes have measured."""
        return [own]

    def leave(self, *, interrupted: bool) -> None:
        """Return: no other process waits."""


def _begin(prepared: Prepared, scheduler: Scheduler, trainer: Trainer, resumption: Resumption | None) -> Sequence[str]:
    """Let stages and loop stand where the training begins, and return what the user should know."""
    init = prepared.spec.init
    if resumption is not None:
        resumption.restore(prepared, scheduler, trainer)
        epochs = prepared.spec.run.epochs
        done = [f"nothing is left to train: run.epochs is {epochs}, and more would go on"]
        return [*resumption.notes, *done * (trainer.trained_epochs >= epochs)]
    if prepared.initial is None:
        return ()
    load_initial(init, scheduler.executors, prepared.network)
    return [prepared.initial]


def _write_weights(process: OnlyProcess | Worker, record: RunRecord | None, trainer: Trainer) -> None:
    """Write the weights, and those that callbacks have beside them; all processes take part."""
    executors, callbacks = trainer.executors, trainer.callbacks
    weights = process.gather("weights", trainer.weights())
    kept = process.gather("callbacks", kept_by_companions(executors)) if callbacks.callbacks else {}
    if record is not None:
        record.write_weights({**callbacks.ended(weights, kept), WEIGHTS: weights})


def _stop_at_once() -> NoReturn:
    raise KeyboardInterrupt
