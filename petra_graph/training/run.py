"""A run from its specification to its directory: one path, in one process as in one of several."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import nullcontext

from attrs import frozen

from petra_graph.errors import Interrupted
from petra_graph.record.listener import Listener
from petra_graph.record.metrics import Metrics
from petra_graph.runtime.control.heap import keep_freed_memory
from petra_graph.runtime.control.rank_info import rank_info_from
from petra_graph.training.loop import Trainer
from petra_graph.training.only_process import OnlyProcess
from petra_graph.training.prepare import fix_arithmetic, prepare
from petra_graph.training.run_record import Summary
from petra_graph.training.worker import Worker


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
    process = OnlyProcess() if rank_info is None else Worker(rank_info)
    with process.control():
        prepared = process.join(prepare(path, overrides, process.size))
        fix_arithmetic(prepared)
        keep_freed_memory()
        record = process.create_record(prepared)
        if record is not None:
            record.write_inputs(prepared)
        with process.stop_requests(), Metrics(record.directory) if record else nullcontext() as metrics:
            trainer = Trainer(
                prepared, process.scheduler(prepared), metrics, listener if record else Listener(), process
            )
            if record is not None:
                record.trainer = trainer
                listener.started(record.run)
            interrupted = trainer.run()
            weights = process.gather_weights(trainer.executors)
            if metrics is not None and record is not None:
                metrics.close()
                record.write_weights(weights)
        status = "interrupted" if interrupted else "done"
        summary = None if record is None else record.summarise(status)
        process.leave()
    return RunResult(summary=summary, interrupted=interrupted)
