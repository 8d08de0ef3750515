"""A run from its specification to its directory."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs
from attrs import define, field, frozen

from petra_graph.errors import Interrupted, PetraGraphError, Problem, RunFailed, SpecError
from petra_graph.program.schedule import schedule_text
from petra_graph.record.environment import environment
from petra_graph.record.listener import Listener, Started
from petra_graph.record.metrics import Metrics
from petra_graph.record.run_directory import create_run_directory, write_json, write_text
from petra_graph.record.weights import save_weights, weights_of
from petra_graph.runtime.inline import InlineRuntime
from petra_graph.session.interrupt import stop_requests
from petra_graph.session.plan import planned
from petra_graph.session.prepare import Prepared, fix_arithmetic, prepare
from petra_graph.session.resolve import resolved
from petra_graph.session.train import Trainer
from petra_graph.spec.dump import dump

Summary = Mapping[str, Any]


@frozen(kw_only=True)
class Ended:
    """A run that is over, done or interrupted; a failed one raises."""

    summary: Summary
    interrupted: Interrupted | None


def run(path: str, overrides: Iterable[str], listener: Listener) -> Ended:
    """Train what a specification describes.

    Raises:
        SpecError, PluginError: before anything is written.
        RunFailed: afterwards; the run directory says why, and the error has its summary.
    """
    prepared = prepare(path, overrides)
    fix_arithmetic(prepared)
    directory = create_run_directory(prepared.spec.run.directory, prepared.spec.name)
    attempt = _Attempt(prepared=prepared, directory=directory)
    try:
        interrupted = _train(attempt, listener)
        return Ended(summary=_summarise(attempt, "interrupted" if interrupted else "done"), interrupted=interrupted)
    except RunFailed as error:
        _record_failure(attempt, error)
        raise
    except Exception as error:
        problems = error.problems if isinstance(error, PetraGraphError) else (_unexpected(error),)
        failure = RunFailed(problems)
        failure.__cause__ = error
        _record_failure(attempt, failure)
        raise failure from error


@define(kw_only=True)
class _Attempt:
    """A run under way: what there is to tell of it, however it ends."""

    prepared: Prepared
    directory: Path
    trainer: Trainer | None = None
    """None before the network is built."""
    predicted: Mapping[str, Any] | None = None
    """What the plan says; None where none could be made."""
    began: float = field(factory=time.perf_counter)


def _train(attempt: _Attempt, listener: Listener) -> Interrupted | None:
    """Train, and write everything but the summary; return the interruption that ended it, if one did."""
    prepared, directory = attempt.prepared, attempt.directory
    write_text(directory / "spec.toml", prepared.checked.loaded.text)
    write_text(directory / "resolved.toml", dump(resolved(prepared)))
    write_json(directory / "env.json", environment())
    _plan(attempt)
    interrupted = None
    with stop_requests() as stop, Metrics(directory) as metrics:
        clip = prepared.spec.optimizer.clip
        runtime = InlineRuntime(prepared.executors(), global_clip=clip is not None and clip.scope == "global")
        attempt.trainer = Trainer(prepared, runtime, metrics, listener, stop)
        listener.started(_started(prepared, directory))
        try:
            attempt.trainer.run()
        except Interrupted as request:
            interrupted = request
        finally:
            listener.stopped()
        metrics.close()
        modules = [pair for executor in runtime.executors for pair in executor.modules.items()]
        save_weights(directory / "weights.safetensors", weights_of(modules))
    return interrupted


def _plan(attempt: _Attempt) -> None:
    """Write the plan of what will run; a run that cannot be planned is run all the same, and says why."""
    prepared = attempt.prepared
    try:
        plan = planned(prepared.spec, prepared.compiled, prepared.costs)
    except SpecError as error:
        attempt.predicted = {"not planned": [str(problem) for problem in error.problems]}
        return
    document = plan.document(with_timeline=False)
    write_json(attempt.directory / "plan.json", document)
    attempt.predicted = {
        "samples_per_second": round(document["timing"]["samples_per_second"], 1),
        "memory_bytes": document["totals"]["bytes"]["total"],
        "from": "profile" if prepared.spec.partition.profile else "data sheet",
    }


def _summarise(attempt: _Attempt, status: str, **more: Any) -> Summary:
    """Write the summary, last of all files, and return it."""
    summary = {**_summary(attempt, status), **more}
    write_json(attempt.directory / "summary.json", summary)
    return summary


def _unexpected(error: Exception) -> Problem:
    return Problem(
        message=f"{type(error).__name__}: {error}", hint="failure.txt in the run directory has the traceback"
    )


def _record_failure(attempt: _Attempt, error: RunFailed) -> None:
    """Write down why a run failed; where even that fails (a full disk), the first cause matters more."""
    try:
        write_text(attempt.directory / "failure.txt", "".join(traceback.format_exception(error)))
        error.summary = _summarise(attempt, "failed", error=[str(problem) for problem in error.problems])
    except PetraGraphError:
        error.add_note(f"the failure could not be recorded in {attempt.directory} either")


def _started(prepared: Prepared, directory: Path) -> Started:
    compiled = prepared.compiled
    return Started(
        name=prepared.spec.name,
        directory=directory,
        epochs=prepared.spec.run.epochs,
        micro_batches=len(prepared.training_batches(0)),
        batch=prepared.spec.data.batch,
        method=compiled.method.name,
        schedule=schedule_text(compiled.schedule),
        accumulation=prepared.spec.method.accumulation,
        stages=len(compiled.programs),
        parameters=compiled.parameters,
    )


def _summary(attempt: _Attempt, status: str) -> dict[str, Any]:
    prepared, trainer = attempt.prepared, attempt.trainer
    epochs = trainer.epochs if trainer else []
    tests = [report.test for report in epochs if report.test]
    micro_batches = trainer.micro_batches if trainer else 0
    training = trainer.seconds if trainer else 0.0
    return {
        "name": prepared.spec.name,
        "status": status,
        "directory": str(attempt.directory),
        "method": prepared.compiled.method.name,
        "schedule": schedule_text(prepared.compiled.schedule),
        "accumulation": prepared.spec.method.accumulation,
        "stages": len(prepared.compiled.programs),
        "parameters": prepared.compiled.parameters,
        "precision": attrs.asdict(prepared.spec.precision),
        "seed": prepared.spec.run.seed,
        "epochs": len(epochs),
        "micro_batches": micro_batches,
        "updates": trainer.updates if trainer else 0,
        "train": dict(trainer.train) if trainer and trainer.train else None,
        "test": dict(tests[-1]) if tests else None,
        "seconds": {"total": round(time.perf_counter() - attempt.began, 3), "training": round(training, 3)},
        "samples_per_second": round(micro_batches * prepared.spec.data.batch / training, 1) if micro_batches else None,
        "predicted": attempt.predicted,
        "weights": None if status == "failed" else "weights.safetensors",
    }
