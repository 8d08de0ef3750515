"""A run from its specification to its directory: one path, in one process as in one of several.

given --prepare--> Prepared --build--> Trainer --train--> position --record--> run directory
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from attrs import frozen

from petra_graph.errors import Interrupted
from petra_graph.executor.delayed_weights import evaluating
from petra_graph.planning.saved_plan import SavedPlan
from petra_graph.plugins.callback import Listener
from petra_graph.record.run_directory import Metrics
from petra_graph.record.weights import WEIGHTS
from petra_graph.runtime.store import rank_info_from
from petra_graph.runtime.system import keep_freed_memory, numbers_of
from petra_graph.spec.load_spec import Given
from petra_graph.training.callbacks import attach_to_stages, companion_tensors
from petra_graph.training.checkpoint import Checkpoints
from petra_graph.training.evaluation import Meters
from petra_graph.training.prepare import Prepared, fix_arithmetic, prepare
from petra_graph.training.process import OneOfSeveral, RunProcess
from petra_graph.training.resume import Resumption
from petra_graph.training.run_record import Summary, measure_process, peak_bytes
from petra_graph.training.trainer import Trainer, TrainingPosition


@frozen(kw_only=True)
class RunResult:
    """The end of a run, done or interrupted; a failed run raises."""

    summary: Summary | None
    """None where another process records."""
    interrupted: Interrupted | None


def run(
    given: Given,
    overrides: Sequence[str],
    listener: Listener,
    resume: Path | None = None,
    saved: SavedPlan | None = None,
) -> RunResult:
    """Train a specification: all of it, or the stages of one of the processes that torchrun started.

    Args:
        given: the specification.
        overrides: values set on the command line.
        resume: the directory of a run, which is resumed there.
        saved: a plan, whose placement the run takes.

    Raises:
        SpecError, PluginError: before anything is written.
        RunFailed: afterwards; the run directory says why, and the error has its summary.
        FailedOnAnotherProcess: another process raises one of these.
    """
    rank_info = rank_info_from(os.environ)
    process = RunProcess() if rank_info is None else OneOfSeveral(rank_info)
    with process.control():
        resumption = process.resumption(resume, given, overrides)
        folders = None if resumption is None else resumption.folders
        process.supervisor.starting = True
        process.prepared = prepare(given, overrides, process.size, folders, saved=saved)
        _ = process.prepared.fingerprint  # computed here, as it may take a while
        process.supervisor.starting = False
        process.prepared = prepared = process.join(process.prepared)
        ended = None if resumption is None else resumption.accept(prepared)
        fix_arithmetic(prepared)
        keep_freed_memory()
        with process.stop_requests(numbers_of(prepared.spec.checkpoint.signal)):
            process.open_directory(prepared, resumption)
            if ended is None:
                result = _train(process, prepared, resumption, listener)
            else:  # nothing is left to train, and nothing is written
                if process.record is not None and resumption is not None:
                    listener.started(process.record.begins(resumption, resumption.notes))
                    listener.stopped()
                result = RunResult(summary=ended if process.record else None, interrupted=None)
        process.leave(interrupted=result.interrupted is not None)
    return result


def _train(process: RunProcess, prepared: Prepared, resumption: Resumption | None, listener: Listener) -> RunResult:
    """Train from the beginning or the checkpoint, test, and write weights and summary; all processes take part in each step."""
    record, notes = process.record, [*prepared.placement.notes]
    if record is not None:
        record.write_inputs(resumption)
    since = None if resumption is None else resumption.metrics_bytes
    with Metrics(record.directory, since) if record else nullcontext() as metrics:
        # The stages of this process, as they are where the training begins.
        bytes_before = peak_bytes()
        process.scheduler = scheduler = process.build(prepared)
        attach_to_stages(prepared.callbacks, scheduler.executors, prepared.stages)
        position, meters = TrainingPosition(micro_batches_per_epoch=prepared.opened.length), Meters(prepared.loss)
        if resumption is not None:
            position, meters = resumption.restore(prepared, scheduler)
            notes += resumption.notes
        elif prepared.initial is not None:
            prepared.initial.load(pair for executor in scheduler.executors for pair in executor.modules.items())
            notes.append(prepared.initial.said)
        process.trainer = trainer = Trainer(
            prepared=prepared,
            scheduler=scheduler,
            metrics=metrics,
            listener=listener if record else Listener(),
            process=process,
            position=position,
            meters=meters,
        )
        checkpoints = Checkpoints(process, trainer, resumption)
        if record is not None:
            trainer.begin(record.begins(resumption, notes))

        interrupted = trainer.run()

        # The weights that are evaluated, and those that callbacks make of them and of what their companions kept.
        with evaluating(trainer.executors):
            files = {WEIGHTS: process.gather("weights", trainer.weights())}
        if prepared.spec.callback:
            kept = process.gather("callbacks", companion_tensors(trainer.executors))
            for one in trainer.led:
                own = {
                    name.removeprefix(f"{one.name}/"): kept[name] for name in kept if name.startswith(f"{one.name}/")
                }
                files = {**one.call("ended", files[WEIGHTS], own), **files}
        if record is not None:
            record.write_weights(files)
        checkpoints.end(halted=interrupted is not None)
        if interrupted is None and prepared.spec.data.validation is not None:
            interrupted = trainer.test()
            if interrupted is not None:
                checkpoints.end(halted=True)  # a resumed run makes the test
    of_all = process.gather_measured(measure_process(trainer, process.rank, bytes_before))
    status = "interrupted" if interrupted else "done"
    summary = None if record is None else record.summarise(status, trainer.summary(), of_all)
    return RunResult(summary=summary, interrupted=interrupted)
