"""The record of a run: the files of its directory, from the lock to its summary or its failure."""

from __future__ import annotations

import re
import resource
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import attrs
import torch
from attrs import define, field
from torch import Tensor

from petra_graph.compiler.plan import Plan
from petra_graph.compiler.spec_checks import device_count
from petra_graph.errors import PetraGraphError, PluginError, Problem, RunFailed, RunFailedByPlugin, raised_text
from petra_graph.planning.advice import run_warnings
from petra_graph.planning.saved_plan import SavedPlan
from petra_graph.plugins.author_code import FIRST_PARTY
from petra_graph.plugins.callback import Started
from petra_graph.program.schedule import schedule_text
from petra_graph.record.checkpoint import best_cut, drop_behind, numbers, read_manifest
from petra_graph.record.run_directory import PLAN, SCALES, SUMMARY, environment, sha256_of, write_json, write_text
from petra_graph.record.weights import DIGESTS, WEIGHTS, save_weights
from petra_graph.report.planned_and_measured import compare_with_plan
from petra_graph.spec.in_code import toml_values
from petra_graph.spec.load_spec import dump
from petra_graph.training.identity import resolved
from petra_graph.training.prepare import Prepared
from petra_graph.training.resume import Resumption
from petra_graph.training.trainer import Trainer

Summary = Mapping[str, Any]
_OF_RUN = ("name", "method", "schedule", "accumulation", "stages", "parameters")
"""What the summary and `run --dry-run` say of a run."""
_FAILURE = "failure.txt", "failure.json"


@define(kw_only=True)
class RunRecord:
    run: Started
    prepared: Prepared
    plan: Plan | None = None
    """The plan of what runs, if there is one."""
    digests: dict[str, str] = field(factory=dict)
    """The SHA-256 of each file of weights."""
    began: float = field(factory=time.perf_counter)

    @classmethod
    def of(cls, directory: Path, prepared: Prepared, resumption: Resumption | None = None) -> RunRecord:
        """Return the record of a run whose directory exists, with what the user should know of its beginning."""
        spec, opened, initial = prepared.spec, prepared.opened, prepared.initial
        notes = [] if initial is None else [initial.said]
        if resumption is not None:  # whose weights are those of its checkpoint, whatever it began with
            notes = resumption.notes
        run = Started(
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
            tested=opened.evaluated.said,
            resumed_at=None if resumption is None else resumption.at,
            notes=(*prepared.placement.notes, *notes),
            metrics=prepared.checked.scales,
            spec=toml_values(resolved(prepared)),
        )
        return cls(run=run, prepared=prepared)

    def outline(self) -> dict[str, Any]:
        """Return the figures that `run --dry-run` prints."""
        prepared, opened = self.prepared, self.prepared.opened
        splits = {"training": opened.train, "validation": opened.validation, "test": opened.test}
        return {
            **{key: getattr(self.run, key) for key in _OF_RUN},
            "nodes": len(prepared.network.graph.nodes),
            "devices": list(dict.fromkeys(program.device for program in prepared.programs)),
            **{f"{name} samples": len(split) for name, split in splits.items() if split is not None},
            "micro-batches": self.run.epochs * opened.length,
            "updates": opened.horizon.updates,
        }

    def write_inputs(self, resumption: Resumption | None) -> None:
        """Write everything that is known before the training; the specification as given stays that of the first start.

        What is of an end that a resumed run leaves behind is removed.
        """
        directory, prepared, checked = self.run.directory, self.prepared, self.prepared.checked
        if resumption is not None:
            drop_behind(directory, resumption.at)
            for name in (SUMMARY, *_FAILURE):
                (directory / name).unlink(missing_ok=True)
        if not (directory / "spec.toml").exists():
            write_text(directory / "spec.toml", checked.loaded.text)
        write_text(directory / "resolved.toml", dump(resolved(prepared)))
        packages = {
            one.label: f"{one.distribution} {version(one.distribution)}"
            for one in sorted(checked.plugins, key=lambda one: one.label)
            if one.distribution not in {"", FIRST_PARTY}
        }
        write_json(directory / "env.json", {**environment(), "folders": prepared.folders, "plugins": packages})
        write_json(directory / "data.json", attrs.asdict(prepared.facts))
        prepared.fingerprint.write(directory)
        if self.run.metrics:
            write_json(directory / SCALES, attrs.asdict(self.run)["metrics"])
        # The plan that the run was given, or that of a placement which costs have decided; a resumed run keeps its own.
        if prepared.saved is not None or prepared.placement.by_cost:
            from petra_graph.planning.plan_spec import predict  # imports the planner, which other runs do not need

            given, placement = prepared.saved, prepared.placement
            self.plan = predict(prepared.network, placement) if given is None else given.plan
            write_json(directory / PLAN, attrs.evolve(self.plan, timeline=()).as_json())
        else:
            with suppress(PetraGraphError):
                self.plan = SavedPlan.read(str(directory)).plan
        self.run = attrs.evolve(self.run, warnings=tuple(start_warnings(prepared, self.plan)))

    def write_weights(self, files: Mapping[str, Mapping[str, Tensor]]) -> None:
        for name, weights in files.items():
            save_weights(self.run.directory / name, weights)
            self.digests[name] = sha256_of(self.run.directory / name)

    def summarise(
        self, status: str, trained: Mapping[str, Any], measured: Sequence[Mapping[str, Any]] | None = None, **more: Any
    ) -> Summary:
        """Write the summary, last of all files, and return it.

        Args:
            status: "done", "interrupted" or "failed".
            trained: what `Trainer.summary` has returned; {} before the training.
            measured: by all processes, once they have come to the end.
            more: entries in the place of those that are made here.
        """
        run, spec, plan, best = self.run, self.prepared.spec, self.plan, self.prepared.spec.checkpoint.best
        made: dict[str, Any] = {
            "status": status,
            "directory": str(run.directory),
            **{key: getattr(run, key) for key in (*_OF_RUN, "processes")},
            **dict.fromkeys(("epochs", "micro_batches", "updates"), 0),  # of a run that ends before its training
            **dict.fromkeys(("train", "test", "samples_per_second")),
            "resumed_from": [],
            **trained,
            "seconds": {"training": 0.0, "first": 0.0, **trained.get("seconds", {})},
            "checkpoint": next(iter(numbers(run.directory)), None),
            "measured": None,
            "weights": WEIGHTS,
        }
        # Also what came before and behind the training; of a resumed run, of this start alone.
        made["seconds"]["total"] = round(time.perf_counter() - self.began, 3)
        if self.digests:
            made[DIGESTS] = self.digests
        if run.tested:
            made["tested" if run.evaluates == "test" else "validated"] = run.tested
        if best is not None:
            made["best"] = None
            if (at := best_cut(run.directory, spec.checkpoint, run.metrics)) is not None:
                value = read_manifest(run.directory, at).metrics[best]
                made["best"] = {"metric": best, "value": value, "epoch": at // run.micro_batches}
        if measured is not None:
            begun = next(reversed(trained["resumed_from"]), 0)
            made["measured"] = {"from_micro_batch": begun, "processes": measured}
            if plan is not None:
                made["planned_and_measured"] = compare_with_plan(plan, len(plan.stages), measured)
        if run.metrics:
            made["metrics"] = attrs.asdict(run)["metrics"]
        made |= more
        write_json(self.run.directory / SUMMARY, made)
        return made

    def record_failure(
        self,
        error: Exception,
        trained: Mapping[str, Any],
        text: str | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> RunFailed:
        """Write down why a run failed, and return the error as that of a failed run, with the summary.

        If even that fails (a full disk), the first cause matters more.

        Args:
            text: of failure.txt; None: the traceback.
            where: the operation and the processes, for programs that read them.
        """
        failure = error
        if not isinstance(failure, RunFailed):
            failure = (RunFailedByPlugin if isinstance(error, PluginError) else RunFailed)(problems_of(error))
            failure.__cause__ = error
        report, place = (self.run.directory / name for name in _FAILURE)
        try:
            write_text(report, text or "".join(traceback.format_exception(failure)))
            if where is not None:
                write_json(place, where)
            problems = list(map(str, failure.problems))
            failure.summary = self.summarise("failed", trained, error=problems, weights=None)
        except PetraGraphError:
            failure.add_note(f"the failure could not be recorded in {self.run.directory} either")
        return failure


def problems_of(error: Exception) -> Iterable[Problem]:
    if isinstance(error, PetraGraphError):
        return error.problems
    return (Problem(message=raised_text(error), hint="failure.txt in the run directory has the traceback"),)


def peak_bytes() -> int:
    """Return the most memory that this process has had in RAM."""
    # The system's count for a process may include that of the process that started it; Linux's VmHWM never does.
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with suppress(OSError):
        status = Path("/proc/self/status").read_text(encoding="ascii")
        if found := re.search(r"^VmHWM:\s*(\d+) kB", status, re.MULTILINE):
            kib = int(found[1])
    return kib * 1024


def measure_process(trainer: Trainer, peak_bytes_before: int) -> dict[str, Any]:
    """Return what this process has measured of itself.

    `peak_bytes` is the most memory that it ever had in RAM: Python, torch's libraries and the data set as well as the stages.
    `peak_bytes_before` is the same just before the stages were built, so that their difference is closest to what a plan predicts.
    `cuda_peak_bytes` is the most that torch's allocator has handed out, by device. Of each stage: how many operations, and their seconds.
    """
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


def start_warnings(prepared: Prepared, plan: Plan | None = None) -> Iterator[str]:
    """Yield the warnings of devices that are not here, and of the plan."""
    planned, present = device_count(prepared.spec.partition), prepared.placement.devices
    if len(present) == 1 and planned > 1:
        more = f"; --processes {planned} starts a process for each" if present[0].name == "cpu" else ""
        yield f"partition.devices is {planned}, but only {present[0].name} is here: it runs all stages{more}"
    yield from run_warnings(prepared.network, prepared.programs) if plan is None else plan.warnings
