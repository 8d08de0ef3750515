"""The record of a run: the files of its directory, its summary, its failure."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from attrs import define, field
from torch import Tensor

from petra_graph.compiler.spec_checks import device_count
from petra_graph.compiler.stated_devices import device_types
from petra_graph.errors import (
    PetraGraphError,
    PluginError,
    Problem,
    RunFailed,
    RunFailedByPlugin,
    SpecError,
    listed,
    shown,
)
from petra_graph.kinds.listener import Started
from petra_graph.kinds.logger import RunInfo
from petra_graph.planning.advice.run_warnings import run_warnings
from petra_graph.program.plan_document import Document
from petra_graph.program.schedule import schedule_text
from petra_graph.record.checkpoint import drop_behind, numbers, read_manifest
from petra_graph.record.metrics import Metrics, Position
from petra_graph.record.plugin_packages import packages_of
from petra_graph.record.run_directory import (
    SCALES,
    create_run_directory,
    environment,
    lock,
    sha256_of,
    write_json,
    write_text,
)
from petra_graph.record.run_history import ChangedResume, add_to_history, read_history
from petra_graph.record.weights import DIGESTS, SUMMARY, WEIGHTS, save_weights
from petra_graph.report.run.planned_and_measured import compared
from petra_graph.spec.load_spec import dump
from petra_graph.spec.model import Spec
from petra_graph.spec.value_types import as_mapping
from petra_graph.training.checkpoints.best_checkpoint import best
from petra_graph.training.checkpoints.resumption import Resumption
from petra_graph.training.loop.callbacks import uncalled
from petra_graph.training.loop.peers import Progress
from petra_graph.training.loop.trainer import Trainer
from petra_graph.training.prepared_run import Prepared
from petra_graph.training.record.digests import FILE as DIGESTS_FILE
from petra_graph.training.record.resolved_spec import resolved
from petra_graph.training.record.run_plan import figures_of, write_plan

Summary = Mapping[str, Any]


@define(kw_only=True)
class RunRecord:
    run: Started
    spec: Spec
    plan: Document | None = None
    """The plan of what runs, if there is one."""
    measured: Sequence[Mapping[str, Any]] | None = None
    """What all processes have measured (`process_measurements`); None where they have not come to the end."""
    lock: int | None = None
    """The lock that the process that records holds, so that no other process resumes the run meanwhile."""
    digests: dict[str, str] = field(factory=dict)
    """The SHA-256 of each file of weights."""
    began: float = field(factory=time.perf_counter)

    @classmethod
    def of(cls, directory: Path, prepared: Prepared, processes: int, lock: int | None = None) -> RunRecord:
        """Return the record of a run whose directory exists."""
        spec, opened = prepared.spec, prepared.opened
        run = Started(
            name=spec.name,
            directory=directory,
            epochs=spec.run.epochs,
            micro_batches=len(opened.batches),
            batch=opened.batches.whole,
            method=spec.method.name,
            schedule=schedule_text(prepared.placement.schedule),
            accumulation=spec.method.accumulation,
            stages=len(prepared.programs),
            parameters=prepared.network.parameters_in(prepared.programs),
            processes=processes,
            tested=opened.tested,
            metrics=prepared.checked.scales,
        )
        return cls(run=run, spec=spec, lock=lock)

    @property
    def directory(self) -> Path:
        return self.run.directory

    @property
    def _trial(self) -> Mapping[str, int | bool]:
        """The keys that make the run a trial, shorter than its data."""
        run = self.spec.run
        keys = {
            "micro_batches": run.micro_batches,
            "evaluation_batches": run.evaluation_batches,
            "overfit": run.overfit,
        }
        return {key: value for key, value in keys.items() if value}

    @property
    def _metrics(self) -> dict[str, Any]:
        return {label: attrs.asdict(scale) for label, scale in self.run.metrics.items()}

    def release(self) -> None:
        """Give up the lock, so that another process can resume the run."""
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None

    def begins(self, resumption: Resumption | None, notes: Sequence[str]) -> Started:
        """Return the run as observers see it, with what the user should know of its beginning."""
        at, more = None if resumption is None else resumption.at, []
        if self._trial:
            keys = ", ".join(f"run.{key} = {shown(value)}" for key, value in self._trial.items())
            more.append(f"a trial on a part of the data: {keys}")
        self.run = attrs.evolve(self.run, resumed_at=at, notes=(*notes, *more))
        return self.run

    def write_inputs(
        self, prepared: Prepared, resumption: Resumption | None = None, changed: ChangedResume | None = None
    ) -> None:
        """Write everything that is known before the training; the specification as given stays that of the first start.

        What is of an end that a resumed run leaves behind is removed; what has `changed` at the resume is added to its history.
        """
        if resumption is not None:
            drop_behind(self.directory, resumption.at)
            for name in ("summary.json", "failure.txt", "failure.json"):
                (self.directory / name).unlink(missing_ok=True)
        if changed is not None:
            add_to_history(self.directory, changed)
        if not (self.directory / "spec.toml").exists():
            write_text(self.directory / "spec.toml", prepared.checked.loaded.text)
        write_text(self.directory / "resolved.toml", dump(resolved(prepared)))
        used = {"folders": prepared.checked.loaded.folders, "plugins": packages_of(prepared.checked.plugins)}
        write_json(self.directory / "env.json", {**environment(), **used})
        write_json(self.directory / "data.json", attrs.asdict(prepared.facts))
        write_json(self.directory / DIGESTS_FILE, prepared.digests)
        if self.run.metrics:
            write_json(self.directory / SCALES, self._metrics)
        self.plan = write_plan(prepared, self.directory)
        warnings = (
            list(run_warnings(prepared.network, prepared.programs)) if self.plan is None else self.plan["warnings"]
        )
        self.run = attrs.evolve(self.run, warnings=(*known(prepared, self.run.processes), *warnings))

    def write_weights(self, files: Mapping[str, Mapping[str, Tensor]]) -> None:
        for name, weights in files.items():
            save_weights(self.directory / name, weights)
            self.digests[name] = sha256_of(self.directory / name)

    def summarise(
        self,
        status: str,
        trained: Trainer | Progress,
        measured: Sequence[Mapping[str, Any]] | None = None,
        **more: Any,
    ) -> Summary:
        """Write the summary, last of all files, and return it.

        Args:
            status: "done", "interrupted" or "failed".
            trained: how far the training came: this process's, or what the process with the head had published.
            measured: the measurements of all processes, once they have come to the end.
            more: entries of the summary.
        """
        run, spec = self.run, self.spec
        trainer = trained if isinstance(trained, Trainer) else None
        progress = trained.progress if isinstance(trained, Trainer) else trained
        resumed_from = list(trainer.position.resumed_from) if trainer else []
        self.measured = measured or self.measured
        rate = progress.micro_batches_per_second
        summary = {
            "name": run.name,
            "status": status,
            "directory": str(run.directory),
            "method": run.method,
            "schedule": run.schedule,
            "accumulation": run.accumulation,
            "stages": run.stages,
            "processes": run.processes,
            "parameters": run.parameters,
            "precision": attrs.asdict(spec.precision),
            "seed": spec.run.seed,
            "epochs": progress.epochs,
            "micro_batches": progress.micro_batches,
            "updates": progress.updates,
            "train": dict(progress.train) if progress.train else None,
            "test": dict(progress.test) if progress.test else None,
            **({"tested": run.tested} if run.tested else {}),
            "seconds": {
                "total": round(time.perf_counter() - self.began, 3),
                "training": round(progress.seconds, 3),
                "first": round(progress.first[1], 3),
            },
            "samples_per_second": None if rate is None else round(rate * run.batch, 1),
            "resumed_from": resumed_from,
            **({"changed": [attrs.asdict(one) for one in history]} if (history := read_history(run.directory)) else {}),
            "checkpoint": next(iter(numbers(run.directory)), None),
            **({} if spec.checkpoint.best is None else {"best": self._best(spec.checkpoint.best)}),
            "predicted": None if self.plan is None else figures_of(self.plan, spec),
            "measured": None
            if self.measured is None
            else {"from_micro_batch": resumed_from[-1] if resumed_from else 0, "processes": self.measured},
            **(
                {"planned_and_measured": compared(self.plan, self.measured)}
                if self.plan is not None and self.measured is not None
                else {}
            ),
            "weights": None if status == "failed" else WEIGHTS,
            **({DIGESTS: self.digests} if self.digests else {}),
            **({"metrics": self._metrics} if run.metrics else {}),
            **({"trial": trial} if (trial := self._trial) else {}),
            **({"warnings": warned} if (warned := trainer and trainer.warnings.texts) else {}),
            **({"stopped_early": stopped} if (stopped := trainer and trainer.stopped_early) else {}),
            **more,
        }
        write_json(self.directory / SUMMARY, summary)
        return summary

    def _best(self, metric: str) -> dict[str, Any] | None:
        """Return the best checkpoint's value of a metric, and its epoch; None: no evaluation has measured it."""
        cuts = best(self.directory, self.spec.checkpoint, self.run.metrics)
        if not cuts:
            return None
        manifest = read_manifest(self.directory, cuts[0])
        return {"metric": metric, "value": manifest.metrics[metric], "epoch": cuts[0] // self.run.micro_batches}

    def failed(self, error: Exception, trained: Trainer | Progress) -> RunFailed:
        """Return an error of any kind as a failed run, and write it down."""
        kind = RunFailedByPlugin if isinstance(error, PluginError) else RunFailed
        failure = error if isinstance(error, RunFailed) else kind(problems_of(error))
        if failure is not error:
            failure.__cause__ = error
        self.record_failure(failure, "".join(traceback.format_exception(failure)), trained)
        return failure

    def record_failure(
        self, error: PetraGraphError, text: str, trained: Trainer | Progress, where: Mapping[str, Any] | None = None
    ) -> None:
        """Write down why a run failed; where even that fails (a full disk), the first cause matters more.

        The error gets the summary; `where` has the operation and the processes, for programs that read them.
        """
        try:
            write_text(self.directory / "failure.txt", text)
            if where is not None:
                write_json(self.directory / "failure.json", where)
            summary = self.summarise("failed", trained, error=listed(error.problems))
            if isinstance(error, RunFailed):
                error.summary = summary
        except PetraGraphError:
            error.add_note(f"the failure could not be recorded in {self.directory} either")


def open_record(prepared: Prepared, resumption: Resumption | None, processes: int = 1) -> RunRecord:
    """Create a run directory, or open that of a resumed run."""
    if resumption is None:
        directory = create_run_directory(prepared.spec.run.directory, prepared.spec.name)
        return RunRecord.of(directory, prepared, processes, lock(directory))
    directory = resumption.directory
    return RunRecord.of(directory, prepared, processes, lock(directory))


def open_loggers(prepared: Prepared, metrics: Metrics, since: Position | None) -> None:
    """Send metrics to the loggers of a specification, too; their file ends where the run begins or is resumed (`since`)."""
    run = RunInfo(
        directory=metrics.directory,
        name=prepared.spec.name,
        spec=as_mapping(resolved(prepared)),
        resumed_at=None if since is None else since.step,
    )
    for logger in prepared.checked.loggers:
        try:
            metrics.add(str(logger.plugin), logger.build(run))
        except SpecError as error:
            raise RunFailed(prepared.checked.loaded.located(error.problems)) from error
        except PluginError as error:
            # TensorBoard, which is there by default where it is installed, may be of a version that torch refuses.
            if prepared.spec.logger is not None or not isinstance(error.__cause__, ImportError):
                raise


def problems_of(error: Exception) -> Iterable[Problem]:
    if isinstance(error, PetraGraphError):
        return error.problems
    message = f"{type(error).__name__}: {error}"
    return (Problem(message=message, hint="failure.txt in the run directory has the traceback"),)


def known(prepared: Prepared, processes: int) -> Iterator[str]:
    """Yield warnings beyond the plan's: of the self-check, of callbacks' methods that no run calls, and of devices and cores that are not here."""
    yield from prepared.doubts
    yield from uncalled(prepared.callbacks)
    yield from _absent_devices(prepared)
    here = int(os.environ.get("LOCAL_WORLD_SIZE", processes))
    need, cores = here * prepared.spec.run.threads, len(os.sched_getaffinity(0))
    if here > 1 and need > cores and prepared.programs[0].device.startswith("cpu"):
        yield f"{here} processes on this machine need {need} cores for the speed of the plan, but it has {cores}"


def _absent_devices(prepared: Prepared) -> Iterator[str]:
    """Yield what the specification says of devices that are not here: a plan may assume them, a run cannot use them."""
    partition, present = prepared.spec.partition, prepared.placement.devices
    planned, types = device_count(partition), partition.device_type or ()
    if len(present) == 1 and planned > 1:
        more = f"; --processes {planned} starts a process for each" if present[0].name == "cpu" else ""
        yield f"partition.devices is {planned}, but only {present[0].name} is here: it runs all stages{more}"
    known, used = device_types(partition), dict.fromkeys(program.device for program in prepared.programs)
    asked = {known[name].kind for name in ((types,) if isinstance(types, str) else types)}
    if asked - {name.partition(":")[0] for name in used}:
        yield (
            f"partition.device_type is {shown(types)}, but the run computes on {', '.join(used)}: "
            "the device type is for plans, and the run's speed and memory are others"
        )
