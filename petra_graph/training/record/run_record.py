"""The record of a run: the files of its directory, from the lock to its summary or its failure."""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import attrs
from attrs import define, field
from torch import Tensor

from petra_graph.errors import (
    PetraGraphError,
    PluginError,
    Problem,
    RunFailed,
    RunFailedByPlugin,
    SpecError,
    listed,
    raised_text,
    shown,
)
from petra_graph.planning.place.saved_plan import SavedPlan
from petra_graph.plugins.callback import RunInfo, Started
from petra_graph.plugins.contract import FIRST_PARTY, Plugin
from petra_graph.program.plan_document import Document
from petra_graph.program.schedule import schedule_text
from petra_graph.record.metrics import Metrics, Position
from petra_graph.record.run_directory import (
    PLAN,
    SCALES,
    TIMELINE,
    create_run_directory,
    environment,
    lock,
    sha256_of,
    write_json,
    write_text,
)
from petra_graph.record.weights import SUMMARY, save_weights
from petra_graph.record.write_checkpoint import drop_behind
from petra_graph.report.plan_tables import ticks_once_full
from petra_graph.spec.load_spec import dump
from petra_graph.spec.model import Spec
from petra_graph.spec.value_types import as_mapping
from petra_graph.training.checkpoints.resumption import Resumption
from petra_graph.training.prepared_run import Prepared
from petra_graph.training.record.digests import FILE as DIGESTS_FILE
from petra_graph.training.record.resolved_spec import resolved
from petra_graph.training.record.run_summary import Summary, summarise, trial_keys
from petra_graph.training.run_notes import start_warnings

_MOST_DRAWN = 64
"""More stages are not simulated for a picture: it takes time, and no reader could tell them apart."""
_TICKS = 5
"""The number of ticks of the simulated timeline that are kept for a report."""


@define(kw_only=True)
class RunRecord:
    run: Started
    spec: Spec
    plan: Document | None = None
    """The plan of what runs, if there is one."""
    measured: Sequence[Mapping[str, Any]] | None = None
    """What all processes have measured (`run_summary`); None if they have not come to the end."""
    lock: int | None = None
    """The lock that the process that records holds, so that no other process resumes the run meanwhile."""
    digests: dict[str, str] = field(factory=dict)
    """The SHA-256 of each file of weights."""
    began: float = field(factory=time.perf_counter)
    trial: Mapping[str, int | bool] = field(factory=dict)
    """The keys that make the run a trial."""

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
            evaluates=spec.data.evaluated,
            tested=opened.evaluated.said,
            metrics=prepared.checked.scales,
        )
        return cls(run=run, spec=spec, lock=lock, trial=trial_keys(spec, streams=opened.data.train.in_order))

    @property
    def directory(self) -> Path:
        return self.run.directory

    def release(self) -> None:
        """Give up the lock, so that another process can resume the run."""
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None

    def begins(self, resumption: Resumption | None, notes: Sequence[str]) -> Started:
        """Return the run as observers see it, with what the user should know of its beginning."""
        if self.trial:
            keys = ", ".join(f"run.{key} = {shown(value)}" for key, value in self.trial.items())
            notes = [*notes, f"a trial on a part of the data: {keys}"]
        self.run = attrs.evolve(self.run, resumed_at=None if resumption is None else resumption.at, notes=tuple(notes))
        return self.run

    def write_inputs(self, prepared: Prepared, resumption: Resumption | None = None) -> None:
        """Write everything that is known before the training; the specification as given stays that of the first start.

        What is of an end that a resumed run leaves behind is removed.
        """
        directory = self.directory
        if resumption is not None:
            drop_behind(directory, resumption.at)
            for name in (SUMMARY, "failure.txt", "failure.json"):
                (directory / name).unlink(missing_ok=True)
        if not (directory / "spec.toml").exists():
            write_text(directory / "spec.toml", prepared.checked.loaded.text)
        write_text(directory / "resolved.toml", dump(resolved(prepared)))
        used = {"folders": prepared.checked.loaded.folders, "plugins": _packages_of(prepared.checked.plugins)}
        write_json(directory / "env.json", {**environment(), **used})
        write_json(directory / "data.json", attrs.asdict(prepared.facts))
        write_json(directory / DIGESTS_FILE, prepared.digests)
        if self.run.metrics:
            write_json(directory / SCALES, {label: attrs.asdict(scale) for label, scale in self.run.metrics.items()})
        self.plan = write_plan(prepared, directory)
        warnings = start_warnings(prepared, self.run.processes, self.plan)
        self.run = attrs.evolve(self.run, warnings=tuple(warnings))

    def write_weights(self, files: Mapping[str, Mapping[str, Tensor]]) -> None:
        for name, weights in files.items():
            save_weights(self.directory / name, weights)
            self.digests[name] = sha256_of(self.directory / name)

    def summarise(
        self,
        status: str,
        trained: Mapping[str, Any],
        measured: Sequence[Mapping[str, Any]] | None = None,
        **more: Any,
    ) -> Summary:
        """Write the summary, last of all files, and return it; arguments as `run_summary.summarise`, and `more` of its entries."""
        self.measured = measured or self.measured
        summary = {**summarise(self, status, trained), **more}
        write_json(self.directory / SUMMARY, summary)
        return summary

    def record_as_failure(self, error: Exception, trained: Mapping[str, Any]) -> RunFailed:
        """Return an error of any kind as a failed run, and write it down."""
        kind = RunFailedByPlugin if isinstance(error, PluginError) else RunFailed
        failure = error if isinstance(error, RunFailed) else kind(problems_of(error))
        if failure is not error:
            failure.__cause__ = error
        self.record_failure(failure, "".join(traceback.format_exception(failure)), trained)
        return failure

    def record_failure(
        self, error: PetraGraphError, text: str, trained: Mapping[str, Any], where: Mapping[str, Any] | None = None
    ) -> None:
        """Write down why a run failed; if even that fails (a full disk), the first cause matters more.

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
    """Create a run directory, or open that of a resumed run, and lock it."""
    spec = prepared.spec
    directory = create_run_directory(spec.run.directory, spec.name) if resumption is None else resumption.directory
    return RunRecord.of(directory, prepared, processes, lock(directory))


def write_plan(prepared: Prepared, directory: Path) -> Document | None:
    """Write the plan of a run, and return it: the one that it was given, or that of a placement which costs have decided.

    A run that is resumed keeps the plan that is there; None: it has none.
    """
    if prepared.saved is not None:
        document = prepared.saved.document
    elif prepared.placement.by_cost:
        from petra_graph.planning.predict_plan import predict  # imports the planner, which other runs do not need

        drawn = len(prepared.programs) <= _MOST_DRAWN
        plan = predict(prepared.network, prepared.placement)
        document = plan.document(with_timeline=drawn)
    else:
        with suppress(PetraGraphError):
            return SavedPlan.read(str(directory)).document
        return None
    write_json(directory / PLAN, document | {"timeline": []})
    write_text(directory / TIMELINE, json.dumps(ticks_once_full(document, _TICKS)) + "\n")
    return document


def _packages_of(plugins: Iterable[Plugin]) -> Mapping[str, str]:
    """Return the package and its version of each plugin that is not the first party's, by "blocks/NAME"."""
    packages = {}
    for plugin in plugins:
        if plugin.distribution and plugin.distribution != FIRST_PARTY:
            packages[plugin.label] = plugin.distribution
            with suppress(PackageNotFoundError):
                packages[plugin.label] += f" {version(plugin.distribution)}"
    return dict(sorted(packages.items()))


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
    return (Problem(message=raised_text(error), hint="failure.txt in the run directory has the traceback"),)
