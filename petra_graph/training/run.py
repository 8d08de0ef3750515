"""A run from its specification to its directory: one path, in one process as in one of several."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from attrs import frozen
from torch import Tensor

from petra_graph.errors import Interrupted
from petra_graph.executor.stage import StageExecutor
from petra_graph.record.listener import Listener, Silence
from petra_graph.record.metrics import Metrics
from petra_graph.runtime.control.heap import keep_freed_memory
from petra_graph.runtime.control.rank_info import rank_info_from
from petra_graph.runtime.scheduler.scheduler import Scheduler
from petra_graph.training.loop import Peers, Trainer
from petra_graph.training.only_process import OnlyProcess
from petra_graph.training.prepare import Prepared, fix_arithmetic, prepare
from petra_graph.training.run_record import RunRecord, Summary


class RunProcess(Peers, Protocol):
    """A process among those of a run."""

    @property
    def size(self) -> int:
        """How many processes there are."""
        ...

    def control(self) -> AbstractContextManager[None]:
        """Within the context, handle errors, and signals where other processes depend on them."""
        ...

    def join(self, prepared: Prepared) -> Prepared:
        """Agree with the other processes on the run; return it with this process's part of the data."""
        ...

    def create_record(self, prepared: Prepared) -> RunRecord | None:
        """Create the run directory; None where another process records."""
        ...

    def executors(self, prepared: Prepared) -> Sequence[StageExecutor]:
        """Build the stages of this process."""
        ...

    def scheduler(self, prepared: Prepared, executors: Sequence[StageExecutor]) -> Scheduler:
        """Connect the stages of this process with all others."""
        ...

    def stop_requests(self) -> AbstractContextManager[None]:
        """Within the context, signals are requests to stop."""
        ...

    def gather_weights(self, executors: Sequence[StageExecutor]) -> Mapping[str, Tensor]:
        """Return all weights in the process that records."""
        ...

    def leave(self) -> None:
        """End together with the other processes."""
        ...


@frozen(kw_only=True)
class RunResult:
    """The end of a run, done or interrupted; a failed run raises."""

    summary: Summary | None
    """None where another process records."""
    interrupted: Interrupted | None


def run(path: str, overrides: Iterable[str], listener: Listener) -> RunResult:
    """Train a specification: all of it, or the stages of one of the processes that torchrun started.

    Raises:
        SpecError, PluginError: before anything is written.
        RunFailed: afterwards; the run directory says why, and the error has its summary.
        FailedElsewhere: another process raises one of these.
    """
    rank_info = rank_info_from(os.environ)
    if rank_info is None:
        return run_in(OnlyProcess(), path, overrides, listener)
    from petra_graph.training.worker import Worker

    return run_in(Worker(rank_info), path, overrides, listener)


def run_in(process: RunProcess, path: str, overrides: Iterable[str], listener: Listener) -> RunResult:
    """Train the stages of one process; errors as `run`."""
    with process.control():
        prepared = process.join(prepare(path, overrides, process.size))
        fix_arithmetic(prepared)
        keep_freed_memory()
        summary = None
        record = process.create_record(prepared)
        if record is not None:
            record.write_inputs(prepared)
        with process.stop_requests():
            executors = process.executors(prepared)
            scheduler = process.scheduler(prepared, executors)
            interrupted = _train(prepared, scheduler, record, listener, process)
            weights = process.gather_weights(executors)
            if record is not None:
                record.write_weights(weights)
        if record is not None:
            summary = record.summarise("interrupted" if interrupted else "done")
        process.leave()
    return RunResult(summary=summary, interrupted=interrupted)


def _train(
    prepared: Prepared, scheduler: Scheduler, record: RunRecord | None, listener: Listener, peers: Peers
) -> Interrupted | None:
    """Train all epochs; return the interruption that ended them, if one did."""
    metrics = None if record is None else Metrics(record.directory)
    listener = Silence() if record is None else listener
    with metrics or nullcontext():
        trainer = Trainer(prepared, scheduler, metrics, listener, peers)
        if record is not None:
            record.trainer = trainer
            listener.started(record.run)
        try:
            trainer.run()
        except Interrupted as request:
            return request
        finally:
            listener.stopped()
    return None
