"""A run under way and what is told of it: its directory's files, its summary, its failure."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs
from attrs import define, field
from torch import Tensor

from petra_graph.errors import PetraGraphError, Problem, RunFailed, SpecError
from petra_graph.planning.plan import planned
from petra_graph.program.schedule import schedule_text
from petra_graph.record.environment import environment
from petra_graph.record.listener import Started
from petra_graph.record.run_directory import create_run_directory, write_json, write_text
from petra_graph.record.weights import save_weights
from petra_graph.spec.dump import dump
from petra_graph.training.loop import Reached, Trainer
from petra_graph.training.prepare import Prepared
from petra_graph.training.resolve import resolved

Summary = Mapping[str, Any]


@define(kw_only=True)
class RunRecord:
    """A run under way: what there is to tell of it, however it ends."""

    prepared: Prepared
    directory: Path
    processes: int = 1
    trainer: Trainer | None = None
    """None before the network is built, and where another process trains the head."""
    told: Reached = field(factory=Reached)
    """How far the training came in another process, as that has told."""
    predicted: Mapping[str, Any] | None = None
    """What the plan says; None where none was made."""
    began: float = field(factory=time.perf_counter)

    @classmethod
    def new(cls, prepared: Prepared, processes: int = 1) -> RunRecord:
        """Create the directory.

        Raises:
            RunFailed: it cannot be created.
        """
        directory = create_run_directory(prepared.spec.run.directory, prepared.spec.name)
        return cls(prepared=prepared, directory=directory, processes=processes)

    def write_what_is_known(self) -> None:
        """Write what is known before the training."""
        write_text(self.directory / "spec.toml", self.prepared.checked.loaded.text)
        write_text(self.directory / "resolved.toml", dump(resolved(self.prepared)))
        write_json(self.directory / "env.json", environment())
        self._write_plan()

    def _write_plan(self) -> None:
        """Write the plan of what will run; a run that cannot be planned is run all the same, and says why."""
        prepared = self.prepared
        try:
            plan = planned(prepared.spec, prepared.compiled, prepared.costs)
        except SpecError as error:
            self.predicted = {"not planned": [str(problem) for problem in error.problems]}
            return
        document = plan.document(with_timeline=False)
        write_json(self.directory / "plan.json", document)
        self.predicted = {
            "samples_per_second": round(document["timing"]["samples_per_second"], 1),
            "memory_bytes": document["totals"]["bytes"]["total"],
            "from": "profile" if prepared.spec.partition.profile else "data sheet",
        }

    def write_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Write the weights."""
        save_weights(self.directory / "weights.safetensors", weights)

    def summarise(self, status: str, **more: Any) -> Summary:
        """Write the summary, last of all files, and return it."""
        summary = {**_summary(self, status), **more}
        write_json(self.directory / "summary.json", summary)
        return summary

    def failed(self, error: Exception) -> RunFailed:
        """Return an error of any kind as a failed run, and write it down."""
        failure = error if isinstance(error, RunFailed) else RunFailed(problems_of(error))
        if failure is not error:
            failure.__cause__ = error
        self.record_failure(failure, "".join(traceback.format_exception(failure)))
        return failure

    def record_failure(self, error: PetraGraphError, text: str, where: Mapping[str, Any] | None = None) -> None:
        """Write down why a run failed; where even that fails (a full disk), the first cause matters more.

        Args:
            error: what is told; it gets the summary.
            text: the traceback.
            where: what a program may want to read of it.
        """
        try:
            write_text(self.directory / "failure.txt", text)
            if where is not None:
                write_json(self.directory / "failure.json", where)
            summary = self.summarise("failed", error=[str(problem) for problem in error.problems])
            if isinstance(error, RunFailed):
                error.summary = summary
        except PetraGraphError:
            error.add_note(f"the failure could not be recorded in {self.directory} either")

    def started(self) -> Started:
        """Return what listeners are told."""
        prepared, compiled = self.prepared, self.prepared.compiled
        return Started(
            name=prepared.spec.name,
            directory=self.directory,
            epochs=prepared.spec.run.epochs,
            micro_batches=len(prepared.training_batches(0)),
            batch=prepared.spec.data.batch * prepared.spec.partition.replicas,
            method=compiled.method.name,
            schedule=schedule_text(compiled.schedule),
            accumulation=prepared.spec.method.accumulation,
            stages=len(compiled.programs),
            parameters=compiled.parameters,
            processes=self.processes,
        )


def problems_of(error: Exception) -> Iterable[Problem]:
    """Return what is to be told of an error."""
    if isinstance(error, PetraGraphError):
        return error.problems
    message = f"{type(error).__name__}: {error}"
    return (Problem(message=message, hint="failure.txt in the run directory has the traceback"),)


def _summary(record: RunRecord, status: str) -> dict[str, Any]:
    prepared = record.prepared
    reached = record.trainer.reached if record.trainer else record.told
    return {
        "name": prepared.spec.name,
        "status": status,
        "directory": str(record.directory),
        "method": prepared.compiled.method.name,
        "schedule": schedule_text(prepared.compiled.schedule),
        "accumulation": prepared.spec.method.accumulation,
        "stages": len(prepared.compiled.programs),
        "processes": record.processes,
        "parameters": prepared.compiled.parameters,
        "precision": attrs.asdict(prepared.spec.precision),
        "seed": prepared.spec.run.seed,
        "epochs": reached.epochs,
        "micro_batches": reached.micro_batches,
        "updates": reached.updates,
        "train": dict(reached.train) if reached.train else None,
        "test": dict(reached.test) if reached.test else None,
        "seconds": {"total": round(time.perf_counter() - record.began, 3), "training": round(reached.seconds, 3)},
        "samples_per_second": round(
            reached.micro_batches * prepared.spec.data.batch * prepared.spec.partition.replicas / reached.seconds, 1
        )
        if reached.micro_batches
        else None,
        "predicted": record.predicted,
        "weights": None if status == "failed" else "weights.safetensors",
    }
