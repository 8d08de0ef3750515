"""The record of a run: the files of its directory, from the lock to its summary or its failure."""

from __future__ import annotations

import resource
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import attrs
import torch

from petra_graph.errors import PetraGraphError, PluginError, Problem, RunFailed, RunFailedByPlugin, raised_text
from petra_graph.executor.update import horizon
from petra_graph.planning.plan_spec import run_warnings
from petra_graph.plugins.author_code import FIRST_PARTY
from petra_graph.plugins.callback import Started
from petra_graph.program.schedule import schedule_text
from petra_graph.record.checkpoint import best_cut, drop_behind, numbers, read_manifest
from petra_graph.record.run_directory import PLAN, SCALES, SUMMARY, environment, read_json, write_json, write_text
from petra_graph.record.weights import DIGESTS, WEIGHTS
from petra_graph.report.planned_and_measured import compare_with_plan
from petra_graph.spec.in_code import toml_values
from petra_graph.spec.load_spec import dump
from petra_graph.training.checkpoint import Resumption
from petra_graph.training.identity import resolved
from petra_graph.training.prepare import Prepared
from petra_graph.training.trainer import Trainer

Summary = Mapping[str, Any]
_OF_RUN = ("name", "method", "schedule", "accumulation", "stages", "parameters")  # also for `run --dry-run`
_FAILURE = "failure.txt"


class RunRecord:
    def __init__(self, directory: Path, prepared: Prepared, resumption: Resumption | None = None) -> None:
        """Begin the record of a run whose directory exists, with what the user should know of its beginning."""
        self.prepared, self.began = prepared, time.perf_counter()
        self.digests: dict[str, str] = {}  # the SHA-256 of each file of weights
        spec, opened, initial = prepared.spec, prepared.opened, prepared.initial
        notes = [] if initial is None else [initial.said]
        if resumption is not None:  # whose weights are those of its checkpoint, whatever it began with
            notes = resumption.notes
        self.run = Started(
            name=spec.name,
            directory=directory,
            epochs=spec.run.epochs,
            micro_batches=opened.length,
            batch=opened.whole,
            method=spec.method.name,
            schedule=schedule_text(prepared.placement.schedule),
            accumulation=spec.method.accumulation,
            stages=len(prepared.programs),
            parameters=prepared.network.count_parameters([one.nodes for one in prepared.programs])[0],
            processes=prepared.processes,
            evaluates=spec.data.evaluated,
            resumed_at=None if resumption is None else resumption.manifest.at,
            notes=(*prepared.placement.notes, *notes),
            metrics=prepared.checked.scales,
            spec=toml_values(resolved(prepared)),
        )

    def outline(self) -> dict[str, Any]:
        """Return the figures that `run --dry-run` prints."""
        run, updates = self.run, horizon(self.prepared.spec, self.prepared.opened.length).updates
        counts = {"micro-batches": run.epochs * run.micro_batches, "updates": updates}
        return {**{key: getattr(run, key) for key in _OF_RUN}, **counts}

    def write_inputs(self, resumption: Resumption | None) -> None:
        """Write everything that is known before the training; the specification as given stays that of the first start."""
        directory, prepared, checked = self.run.directory, self.prepared, self.prepared.checked
        if resumption is not None:  # what is of an end that is left behind is removed
            drop_behind(directory, resumption.manifest.at)
            for name in (SUMMARY, _FAILURE):
                (directory / name).unlink(missing_ok=True)
        if not (directory / "spec.toml").exists():
            write_text(directory / "spec.toml", checked.loaded.text)
        write_text(directory / "resolved.toml", dump(resolved(prepared)))
        others = [one for one in checked.plugins if one.distribution not in {"", FIRST_PARTY}]
        packages = {one.label: f"{one.distribution} {version(one.distribution)}" for one in others}
        write_json(directory / "env.json", {**environment(), "folders": prepared.folders, "plugins": packages})
        write_json(directory / "data.json", attrs.asdict(prepared.opened.facts))
        prepared.fingerprint.write(directory)
        if self.run.metrics:
            write_json(directory / SCALES, attrs.asdict(self.run)["metrics"])
        if prepared.saved is not None:
            write_json(directory / PLAN, attrs.evolve(prepared.saved.plan, timeline=()).as_json())
        self.run = attrs.evolve(self.run, warnings=tuple(start_warnings(prepared)))

    def summarise(
        self, status: str, trained: Mapping[str, Any], measured: Sequence[Mapping[str, Any]] = (), **more: Any
    ) -> Summary:
        """Write the summary, last of all files, and return it; `more` are entries in the place of those that are made here."""
        run, best = self.run, self.prepared.spec.checkpoint.best
        made: dict[str, Any] = {
            "status": status,
            "directory": str(run.directory),
            **{key: getattr(run, key) for key in (*_OF_RUN, "processes")},
            **dict.fromkeys(("epochs", "micro_batches", "updates"), 0),  # of a run that ends before its training
            "test": None,
            **trained,
            # Also what came before and behind the training; of a resumed run, of this start alone.
            "seconds": {**trained.get("seconds", {}), "total": round(time.perf_counter() - self.began, 3)},
            "checkpoint": next(iter(numbers(run.directory)), None),
            "weights": WEIGHTS,
            DIGESTS: self.digests,
        }
        if best is not None:
            made["best"] = None
            if (at := best_cut(run.directory, self.prepared.spec.checkpoint, run.metrics)) is not None:
                value = read_manifest(run.directory, at).metrics[best]
                made["best"] = {"metric": best, "value": value, "epoch": at // run.micro_batches}
        if measured:
            made["measured"] = {"processes": measured}
            if (saved := self.prepared.saved) is not None:
                made["planned_and_measured"] = compare_with_plan(saved.plan, len(saved.plan.stages), measured)
        if run.metrics:
            made["metrics"] = attrs.asdict(run)["metrics"]
        made |= more
        write_json(run.directory / SUMMARY, made)
        return made

    def record_failure(self, error: Exception, trained: Mapping[str, Any], text: str = "") -> RunFailed:
        """Write down why a run failed, with a text or the traceback, and return the error as that of a failed run, with the summary."""
        failure = error
        if not isinstance(failure, RunFailed):
            failure = (RunFailedByPlugin if isinstance(error, PluginError) else RunFailed)(problems_of(error))
            failure.__cause__ = error
        try:
            if read_json(self.run.directory / SUMMARY).get("status") in {"done", "interrupted"}:
                return failure  # the run had ended: only its processes have not left together
            write_text(self.run.directory / _FAILURE, text or "".join(traceback.format_exception(failure)))
            problems = list(map(str, failure.problems))
            failure.summary = self.summarise("failed", trained, error=problems, weights=None)
        except PetraGraphError:  # a full disk, say: the first cause matters more
            failure.add_note(f"the failure could not be recorded in {self.run.directory} either")
        return failure


def problems_of(error: Exception) -> Iterable[Problem]:
    if isinstance(error, PetraGraphError):
        return error.problems
    return (Problem(message=raised_text(error), hint="failure.txt in the run directory has the traceback"),)


def peak_bytes() -> int:
    """Return the most memory that this process has had in RAM."""
    own = Path("/proc/self/status")  # the other count may include that of the process that started this one
    if own.exists():
        return int(own.read_text(encoding="ascii").partition("VmHWM:")[2].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure_process(trainer: Trainer, peak_bytes_before: int) -> dict[str, Any]:
    """Return what this process has measured of itself: the most memory, in RAM and on GPUs; of each stage the operations and their seconds."""
    placed = {executor.program.index: executor.program.device for executor in trainer.executors}
    on_cuda = {device for device in placed.values() if device.startswith("cuda")}
    return {
        "rank": trainer.prepared.rank,
        "peak_bytes": max(peak_bytes(), peak_bytes_before),  # the system counts some pages late
        "peak_bytes_before": peak_bytes_before,
        "cuda_peak_bytes": {device: torch.cuda.max_memory_allocated(device) for device in sorted(on_cuda)},
        "stages": [
            {"stage": index, "device": device, **({} if device in on_cuda else trainer.scheduler.measured(index))}
            for index, device in placed.items()
        ],
    }


def start_warnings(prepared: Prepared) -> Iterable[str]:
    """Return the warnings of the plan that the run was given, or else of the run."""
    saved = prepared.saved
    return run_warnings(prepared.network, prepared.programs) if saved is None else saved.plan.warnings
