"""The norm of all stages' gradients, in one process or several."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from petra_graph.runtime.scheduler.stage_cursor import StageCursor


def norm_of_all(cursors: Sequence[StageCursor], stages: int, *, alone: bool) -> Tensor:
    """Return the norm of the window's mean gradient over all stages, a scalar in float64; squares are summed in their order.

    Args:
        stages: how many there are in all processes.
        alone: this process hosts them all; then nothing is read from a device.
    """
    squares = [cursor.executor.updater.squared_norm() for cursor in cursors]
    if alone:
        device = cursors[-1].device
        return torch.stack([squared.to(device, non_blocking=True) for squared in squares]).sum().sqrt()
    norms = torch.zeros(stages, dtype=torch.float64)
    for cursor, squared in zip(cursors, squares, strict=True):
        norms[cursor.index - 1] = squared
    dist.all_reduce(norms)  # every element has one addend that is not zero
    return norms.sum().sqrt()
