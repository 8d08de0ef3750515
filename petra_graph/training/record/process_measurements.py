"""The memory and the seconds that a process of a run has measured of itself, as JSON for the summary.

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
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from petra_graph.training.loop.trainer import Trainer

_KIB = 1024


def peak_bytes() -> int:
    """Return the most memory that this process has had in RAM.

    The system's count for a process may include that of the process that started it; Linux's VmHWM never does.
    """
    with suppress(OSError):
        if found := re.search(
            r"^VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE
        ):
            return int(found[1]) * _KIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB


def measured(trainer: Trainer, rank: int, peak_bytes_before: int) -> dict[str, Any]:
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
