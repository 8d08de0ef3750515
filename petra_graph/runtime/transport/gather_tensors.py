"""The tensors of all stages, gathered in one process for the files that a run writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from petra_graph.runtime.control.world import World

_TAG = 1 << 20
"""Far above the tags of channels."""


def gather_tensors(world: World, name: str, own: Mapping[str, Tensor], ranks: Sequence[int]) -> Mapping[str, Tensor]:
    """Return the tensors of a pipeline in the last stage's process, this process's own elsewhere.

    Args:
        name: of what is gathered, once in a run.
        own: tensors of this process's stages by name, on the CPU and densely laid out.
        ranks: the process of each stage, in order; a process that hosts none of them keeps its own tensors.
    """
    target = ranks[-1]
    described = [(key, list(value.shape), str(value.dtype).removeprefix("torch.")) for key, value in own.items()]
    if world.rank not in ranks:
        return own
    if world.rank != target:
        world.store.set(f"{name}/{world.rank}", described)
        for value in own.values():
            dist.send(_bytes(value), target, tag=_TAG)
        return own
    found = dict(own)
    for rank in dict.fromkeys(ranks):
        if rank == target:
            continue
        for key, shape, dtype in world.wait(f"{name}/{rank}"):
            found[key] = torch.empty(shape, dtype=getattr(torch, dtype))
            dist.recv(_bytes(found[key]), rank, tag=_TAG)
    return found


def _bytes(value: Tensor) -> Tensor:
    return value.detach().reshape(-1).view(torch.uint8)
