"""The weights of all stages, gathered in one process for the file that a run writes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from petra_graph.executor.stage import StageExecutor
from petra_graph.record.weights import weights_of
from petra_graph.runtime.control.world import World

_TAG = 1 << 20
"""Far above the tags of channels."""


def gathered(world: World, executors: Sequence[StageExecutor], ranks: Sequence[int]) -> dict[str, Tensor]:
    """Return the weights of a pipeline in the last stage's process, this process's own weights elsewhere.

    Args:
        world: all processes.
        executors: of this process.
        ranks: the process of each stage, in order; a process that hosts none of them keeps its own weights.
    """
    target = ranks[-1]
    own = weights_of(pair for executor in executors for pair in executor.modules.items())
    described = [(name, list(value.shape), str(value.dtype).removeprefix("torch.")) for name, value in own.items()]
    if world.rank not in ranks:
        return own
    if world.rank != target:
        world.store.set(f"weights/{world.rank}", described)
        for value in own.values():
            dist.send(_bytes(value), target, tag=_TAG)
        return own
    found = dict(own)
    for rank in dict.fromkeys(ranks):
        if rank == target:
            continue
        for name, shape, dtype in world.wait(f"weights/{rank}"):
            found[name] = torch.empty(shape, dtype=getattr(torch, dtype))
            dist.recv(_bytes(found[name]), rank, tag=_TAG)
    return found


def _bytes(value: Tensor) -> Tensor:
    return value.detach().reshape(-1).view(torch.uint8)
