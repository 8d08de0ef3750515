"""Seconds of copies between two of a run's devices."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import torch

from petra_graph.program.device_types import Link

_COPIED_BYTES = 2**26


def timed_link(devices: Sequence[torch.device]) -> Link | None:
    """Time copies of an empty tensor and of one of 64 MiB, from the first device to another one.

    On CPUs alone a copy in memory is timed, as a message through shared memory takes. None: a single GPU has no link.
    """
    others = [device for device in devices if device != devices[0]]
    if not others and devices[0].type != "cpu":
        return None
    source, target = devices[0], (others or devices)[0]
    seconds = [_copying(source, target, size) for size in (1, _COPIED_BYTES)]
    return Link(latency_seconds=seconds[0], bytes_per_second=_COPIED_BYTES / max(seconds[1] - seconds[0], 1e-9))


def _copying(source: torch.device, target: torch.device, size: int) -> float:
    sent = torch.zeros(size, dtype=torch.uint8, device=source)
    received = torch.empty(size, dtype=torch.uint8, device=target)
    taken = []
    for _ in range(12):
        wait_for(source)
        began = time.perf_counter()
        received.copy_(sent)
        wait_for(target)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[2:])


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
