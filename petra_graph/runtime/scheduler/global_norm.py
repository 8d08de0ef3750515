"""One norm over the gradients of all stages, in one process or several, and the update of all stages by it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor

from petra_graph.runtime.scheduler.stage_cursor import StageCursor
from petra_graph.runtime.scheduler.status_reporter import OperationSeconds


def update_together(cursors: Sequence[StageCursor], stages: int, seconds: OperationSeconds, *, alone: bool) -> None:
    """Clip this process's stages by one norm over all stages, and update them; only synchronous methods do so.

    Args:
        stages: how many there are in all processes.
        alone: this process hosts them all; then nothing is read from a device.
    """
    norm = norm_of_all(cursors, stages, alone=alone)
    for cursor in cursors:
        began, tally = time.perf_counter(), seconds.tally(cursor.index, "update")
        with cursor.on_device or nullcontext():
            cursor.executor.update(norm)
        tally[0] += 1
        tally[1] += time.perf_counter() - began
        cursor.advance()


def norm_of_all(cursors: Sequence[StageCursor], stages: int, *, alone: bool) -> Tensor:
    """Return the norm of the window's mean gradient over all stages, a scalar in float64; squares are summed in their order."""
    squares = [cursor.executor.updater.squared_norm() for cursor in cursors]
    if alone:
        device = cursors[-1].device
        return torch.stack([squared.to(device, non_blocking=True) for squared in squares]).sum().sqrt()
    norms = torch.zeros(stages, dtype=torch.float64)
    for cursor, squared in zip(cursors, squares, strict=True):
        norms[cursor.index - 1] = squared
    dist.all_reduce(norms)  # every element has one addend that is not zero
    return norms.sum().sqrt()
