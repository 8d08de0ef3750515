"""The record of a run: the files of its directory, from the lock to its summary or its failure."""

from __future__ import annotations

import json
import os
import re
import resource
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import attrs
import torch
from attrs import define, field
from torch import Tensor

from petra_graph.compiler.spec_checks import device_count
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
from petra_graph.planning.run_advice import products_note, run_warnings
from petra_graph.plugins.callback import RunInfo, Started
from petra_graph.plugins.contract import FIRST_PARTY, Plugin
from petra_graph.program.device_types import device_types
from petra_graph.program.plan_document import Document
from petra_graph.program.schedule import schedule_text
from petra_graph.record.checkpoint import best_first, drop_behind, numbers, read_manifest
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
from petra_graph.record.weights import DIGESTS, SUMMARY, WEIGHTS, save_weights
from petra_graph.report.plan_tables import ticks_once_full
from petra_graph.report.plan_text import expected_throughput
from petra_graph.report.planned_and_measured import compare_with_plan
from petra_graph.spec.load_spec import dump
from petra_graph.spec.model import Spec
from petra_graph.spec.strict_values import as_mapping
from petra_graph.training.prepare import Prepared
from petra_graph.training.resolved_spec import resolved
from petra_graph.training.resume import Resumption
from petra_graph.training.trainer import Trainer

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
        prepared.fingerprint.write(directory)
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


# --- The summary of a run: how far it came, what its processes measured of themselves, and what was planned of it.
#
#     measured     from_micro_batch      before which the latest start of the run began
#                  processes             rank, replica, training_seconds, peak_bytes, peak_bytes_before, cuda_peak_bytes, stages
#     stages       stage, device, forward, backward, update, evaluation: each how many operations, and their seconds
#
# `peak_bytes` is the most memory that the process ever had in RAM: Python, torch's libraries and the data set as well as the
# stages. `peak_bytes_before` is the same just before the stages were built, so that their difference is closest to
# what a plan predicts. `cuda_peak_bytes` is the most that torch's allocator has handed out, by device.


Summary = Mapping[str, Any]
UNTRAINED: Mapping[str, Any] = {
    "epochs": 0,
    "micro_batches": 0,
    "updates": 0,
    "train": None,
    "test": None,
    "seconds": {"training": 0.0, "first": 0.0},
    "samples_per_second": None,
    "resumed_from": [],
}
"""What `Trainer.summary` returns before the training."""
_KIB = 1024


def summarise(record: RunRecord, status: str, trained: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary of a run.

    Args:
        record: of the run, with what its processes have measured once they have come to the end.
        status: "done", "interrupted" or "failed".
        trained: what `Trainer.summary` has returned.
    """
    run, spec, plan, measured = record.run, record.spec, record.plan, record.measured
    resumed_from = trained["resumed_from"]
    made: dict[str, Any] = {
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
        **trained,
        "seconds": {"total": round(time.perf_counter() - record.began, 3), **trained["seconds"]},
        "checkpoint": next(iter(numbers(run.directory)), None),
        "predicted": None if plan is None else _figures(plan, spec),
        "measured": None,
        "weights": None if status == "failed" else WEIGHTS,
    }
    if record.digests:
        made[DIGESTS] = record.digests
    if run.tested:
        made["tested" if run.evaluates == "test" else "validated"] = run.tested
    if spec.checkpoint.best is not None:
        made["best"] = _best_checkpoint(run, spec)
    if measured is not None:
        made["measured"] = {"from_micro_batch": resumed_from[-1] if resumed_from else 0, "processes": measured}
        if plan is not None:
            made["planned_and_measured"] = compare_with_plan(plan, measured)
    if run.metrics:
        made["metrics"] = {label: attrs.asdict(scale) for label, scale in run.metrics.items()}
    if record.trial:
        made["trial"] = record.trial
    return made


def trial_keys(spec: Spec, *, streams: bool) -> Mapping[str, int | bool]:
    """Return the keys that make the run a trial, shorter than its data; a stream has no length but that of the specification."""
    keys = ("micro_batches",) * (not streams) + ("evaluation_batches", "overfit")
    return {key: value for key in keys if (value := getattr(spec.run, key))}


def _figures(plan: Document, spec: Spec) -> Mapping[str, Any]:
    expected = expected_throughput(plan)
    return {
        "samples_per_second": round(plan["timing"]["samples_per_second"], 1),
        "expected_samples_per_second": expected and [round(end, 1) for end in expected],
        "memory_bytes": plan["totals"]["bytes"]["total"],
        "from": "profile" if spec.partition.profile else "data sheet",
    }


def _best_checkpoint(run: Started, spec: Spec) -> dict[str, Any] | None:
    """Return the best checkpoint's value of `checkpoint.best`, and its epoch; None: no evaluation has measured it."""
    cuts, metric = best_first(run.directory, spec.checkpoint, run.metrics), spec.checkpoint.best
    if not cuts or metric is None:
        return None
    value = read_manifest(run.directory, cuts[0]).metrics[metric]
    return {"metric": metric, "value": value, "epoch": cuts[0] // run.micro_batches}


def peak_bytes() -> int:
    """Return the most memory that this process has had in RAM.

    The system's count for a process may include that of the process that started it; Linux's VmHWM never does.
    """
    with suppress(OSError):
        status = Path("/proc/self/status").read_text(encoding="ascii")
        if found := re.search(r"^VmHWM:\s*(\d+) kB", status, re.MULTILINE):
            return int(found[1]) * _KIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB


def measure_process(trainer: Trainer, rank: int, peak_bytes_before: int) -> dict[str, Any]:
    """Return what this process has measured of itself, as above."""
    devices = dict.fromkeys(executor.program.device for executor in trainer.executors)
    stages = []
    for executor in trainer.executors:
        index, device = executor.program.index, executor.program.device
        seconds = {} if device.startswith("cuda") else trainer.scheduler.measured(index)
        stages.append({"stage": index, "device": device, **seconds})
    return {
        "rank": rank,
        "replica": trainer.prepared.opened.batches.replica,
        "training_seconds": round(trainer.seconds_here, 3),
        "peak_bytes": max(peak_bytes(), peak_bytes_before),  # the system counts some pages late
        "peak_bytes_before": peak_bytes_before,
        "cuda_peak_bytes": {
            device: torch.cuda.max_memory_allocated(device) for device in devices if device.startswith("cuda")
        },
        "stages": stages,
    }


# --- What a run says of itself before it trains: its figures, what was decided for it, its warnings.


def outline(prepared: Prepared) -> dict[str, Any]:
    """Return the figures that `run --dry-run` prints."""
    spec, network, opened = prepared.spec, prepared.network, prepared.opened
    return {
        "name": spec.name,
        "nodes": len(network.graph.nodes),
        "stages": len(prepared.programs),
        "parameters": network.parameters_in(prepared.programs),
        "method": network.checked.method.name,
        "schedule": schedule_text(prepared.placement.schedule),
        "accumulation": spec.method.accumulation,
        "devices": list(dict.fromkeys(program.device for program in prepared.programs)),
        "training samples": len(opened.data.train),
        **({} if opened.data.validation is None else {"validation samples": len(opened.data.validation)}),
        "test samples": len(opened.data.test),
        "micro-batches": spec.run.epochs * len(opened.batches),
        "updates": opened.horizon.updates,
    }


def run_notes(prepared: Prepared) -> list[str]:
    """Return what was decided for the run, or has a choice, in sentences."""
    products = products_note(prepared.spec.precision, {"cuda"} if prepared.on_cuda else ())
    return [*prepared.placement.notes, *products]


def start_warnings(prepared: Prepared, processes: int, plan: Document | None = None) -> Iterator[str]:
    """Yield the warnings of devices and cores that are not here, and of the plan."""
    yield from _absent_devices(prepared)
    here = int(os.environ.get("LOCAL_WORLD_SIZE", processes))
    need, cores = here * prepared.spec.run.threads, len(os.sched_getaffinity(0))
    if here > 1 and need > cores and prepared.programs[0].device.startswith("cpu"):
        yield f"{here} processes on this machine need {need} cores for the speed of the plan, but it has {cores}"
    yield from run_warnings(prepared.network, prepared.programs) if plan is None else plan["warnings"]


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
