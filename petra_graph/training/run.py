"""A run from its specification to its directory, in this process alone or as one of several."""

from __future__ import annotations

import os
from collections.abc import Iterable

from attrs import frozen

from petra_graph.errors import Interrupted, RunFailed
from petra_graph.record.listener import Listener
from petra_graph.record.metrics import Metrics
from petra_graph.record.weights import weights_of
from petra_graph.runtime.control.heap import keep_freed_memory
from petra_graph.runtime.control.rank_info import rank_info_from
from petra_graph.runtime.scheduler.context import ProcessContext, SingleProcess
from petra_graph.runtime.scheduler.scheduler import Scheduler
from petra_graph.training.loop import Trainer
from petra_graph.training.prepare import fix_arithmetic, prepare
from petra_graph.training.run_record import RunRecord, Summary
from petra_graph.training.signals import stop_requests


@frozen(kw_only=True)
class Ended:
    """A run that is over, done or interrupted; a failed one raises."""

    summary: Summary | None
    """None where another process tells it."""
    interrupted: Interrupted | None


def run(path: str, overrides: Iterable[str], listener: Listener) -> Ended:
    """Train what a specification describes: all of it, or as one of the processes that torchrun started.

    Raises:
        SpecError, PluginError: before anything is written.
        RunFailed: afterwards; the run directory says why, and the error has its summary.
        FailedElsewhere: another process raises one of these.
    """
    place = rank_info_from(os.environ)
    if place is not None:
        from petra_graph.training.worker import work

        summary, interrupted = work(place, path, overrides, listener)
        return Ended(summary=summary, interrupted=interrupted)
    prepared = prepare(path, overrides)
    fix_arithmetic(prepared)
    keep_freed_memory()
    record = RunRecord.new(prepared)
    try:
        interrupted = _train(record, listener)
        return Ended(summary=record.summarise("interrupted" if interrupted else "done"), interrupted=interrupted)
    except RunFailed as error:
        record.failed(error)
        raise
    except Exception as error:
        raise record.failed(error) from error


def _train(record: RunRecord, listener: Listener) -> Interrupted | None:
    """Train, and write everything but the summary; return the interruption that ended it, if one did."""
    prepared = record.prepared
    record.write_what_is_known()
    interrupted = None
    supervisor = SingleProcess()
    with stop_requests(supervisor), Metrics(record.directory) as metrics:
        context = ProcessContext(supervisor=supervisor, policy=prepared.policy, global_clip=prepared.global_clip)
        runtime = Scheduler(prepared.executors(), context=context)
        record.trainer = Trainer(prepared, runtime, metrics, listener)
        listener.started(record.started())
        try:
            record.trainer.run()
        except Interrupted as request:
            interrupted = request
        finally:
            listener.stopped()
        metrics.close()
        record.write_weights(weights_of(pair for executor in runtime.executors for pair in executor.modules.items()))
    return interrupted
