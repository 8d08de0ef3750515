"""The summary of a run: how far it came, what its processes measured of themselves, and what was planned of it.

    measured     from_micro_batch      before which the latest start of the run began
                 processes             rank, replica, training_seconds, peak_bytes, peak_bytes_before, cuda_peak_bytes, stages
    stages       stage, device, forward, backward, update, evaluation: each how many operations, and their seconds

`peak_bytes` is the most memory that the process ever had in RAM: Python, torch's libraries and the data set as well as the
stages. `peak_bytes_before` is the same just before the stages were built, so that their difference is closest to
what a plan predicts. `cuda_peak_bytes` is the most that torch's allocator has handed out, by device.
"""

from __future__ import annotations

import re
import resource
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import torch

from petra_graph.plugins.callback import Started
from petra_graph.program.plan_document import Document
from petra_graph.record.checkpoint import numbers, read_manifest
from petra_graph.record.weights import DIGESTS, WEIGHTS
from petra_graph.report.plan_text import expected_throughput
from petra_graph.report.planned_and_measured import compare_with_plan
from petra_graph.spec.model import Spec
from petra_graph.training.checkpoints.cut_plan import best_first
from petra_graph.training.loop.trainer import Trainer

if TYPE_CHECKING:
    from petra_graph.training.record.run_record import RunRecord

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
        seconds = {} if device.startswith("cuda") else trainer.scheduler.seconds.of_stage(index)
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
