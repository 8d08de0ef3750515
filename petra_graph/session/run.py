"""A run from its specification to its directory."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from petra_graph.errors import Interrupted, PetraGraphError
from petra_graph.program.schedule import schedule_text
from petra_graph.record.environment import environment
from petra_graph.record.listener import Listener, Started
from petra_graph.record.metrics import Metrics
from petra_graph.record.run_directory import create_run_directory, write_json, write_text
from petra_graph.record.weights import save_weights, weights_of
from petra_graph.runtime.inline import InlineRuntime
from petra_graph.session.interrupt import stop_requests
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
        RunFailed: afterwards; the run directory says why.
    """
    prepared = prepare(path, overrides)
    fix_arithmetic(prepared)
    directory = create_run_directory(prepared.spec.run.directory, prepared.spec.name)
    write_text(directory / "spec.toml", prepared.checked.loaded.text)
    write_text(directory / "resolved.toml", dump(resolved(prepared)))
    write_json(directory / "env.json", environment())
    with stop_requests() as stop, Metrics(directory) as metrics:
        clip = prepared.spec.optimizer.clip
        runtime = InlineRuntime(prepared.executors(), global_clip=clip is not None and clip.scope == "global")
        trainer = Trainer(prepared, runtime, metrics, listener, stop)
        listener.started(_started(prepared, directory))
        return _train(trainer, directory, listener)


def _train(trainer: Trainer, directory: Path, listener: Listener) -> Ended:
    began = time.perf_counter()
    interrupted = None
    try:
        try:
            trainer.run()
        except Interrupted as request:
            interrupted = request
        finally:
            listener.stopped()
        trainer.metrics.close()
        modules = [pair for executor in trainer.runtime.executors for pair in executor.modules.items()]
        save_weights(directory / "weights.safetensors", weights_of(modules))
        summary = _summary(trainer, directory, "interrupted" if interrupted else "done", began)
        write_json(directory / "summary.json", summary)
    except PetraGraphError as error:
        _record_failure(trainer, directory, error, began)
        raise
    return Ended(summary=summary, interrupted=interrupted)


def _record_failure(trainer: Trainer, directory: Path, error: PetraGraphError, began: float) -> None:
    """Write down why a run failed; where even that fails (a full disk), the first cause matters more."""
    try:
        write_text(directory / "failure.txt", "".join(traceback.format_exception(error)))
        summary = {
            **_summary(trainer, directory, "failed", began),
            "error": [str(problem) for problem in error.problems],
        }
        write_json(directory / "summary.json", summary)
    except PetraGraphError:
        error.add_note(f"the failure could not be recorded in {directory} either")


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


def _summary(trainer: Trainer, directory: Path, status: str, began: float) -> Summary:
    prepared = trainer.prepared
    evaluated = [report for report in trainer.epochs if report.test]
    last = trainer.epochs[-1] if trainer.epochs else None
    return {
        "name": prepared.spec.name,
        "status": status,
        "directory": str(directory),
        "method": prepared.compiled.method.name,
        "schedule": schedule_text(prepared.compiled.schedule),
        "accumulation": prepared.spec.method.accumulation,
        "stages": len(prepared.compiled.programs),
        "parameters": prepared.compiled.parameters,
        "seed": prepared.spec.run.seed,
        "epochs": len(trainer.epochs),
        "micro_batches": trainer.micro_batches,
        "updates": trainer.updates,
        "train": dict(last.train) if last else None,
        "test": dict(evaluated[-1].test or {}) if evaluated else None,
        "seconds": {"total": round(time.perf_counter() - began, 3), "training": round(trainer.seconds, 3)},
        "samples_per_second": _rate(trainer),
        "weights": None if status == "failed" else "weights.safetensors",
    }


def _rate(trainer: Trainer) -> float | None:
    samples = sum(report.samples_per_second for report in trainer.epochs)
    return round(samples / len(trainer.epochs), 1) if trainer.epochs else None
