"""A block is built whole, from its key alone, and shares nothing with another node's."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from petra_graph.blocks import Block
from petra_graph.blocks.randomness import fork_rng, random_key
from petra_graph.blocks.tensor_faults import tensor_fault
from petra_graph.blocks.weight_decay import undecayed_fault
from petra_graph.kinds.broken_promise import BrokenPromise
from petra_graph.kinds.generators import seeded
from petra_graph.promises.block_trial import NODE, Trial


def check_construction(trial: Trial) -> None:
    """Two blocks built with one key are equal and share no tensor; all tensors have shapes and are registered; `undecayed` names some.

    Optimizers, memory plans and processes see the parameters before the first forward; nodes are trained apart from one another,
    each in a stage that may be in another process.
    """
    with seeded(trial.seed):
        one, other = _built(trial), _built(trial)
    if (wrong := tensor_fault(one)) is not None:
        raise BrokenPromise("construction", f"the block {wrong.found}", wrong.remedy)
    fault = undecayed_fault(one)
    if fault:
        raise BrokenPromise("construction", f"the block {fault}", "name parameters as `named_parameters()` does")
    shared = [name for name, tensor in _tensors(one).items() if _same_memory(tensor, _tensors(other)[name])]
    if shared:
        found = f"two blocks share {', '.join(shared)}, and would be two nodes of different stages"
        raise BrokenPromise("construction", found, "make parameters and buffers in __init__, one for each block")
    differing = [name for name, tensor in _tensors(one).items() if not torch.equal(tensor, _tensors(other)[name])]
    if differing:
        found = f"two blocks of one key begin with other values in {', '.join(differing)}"
        raise BrokenPromise("construction", found, "draw initial values with torch, whose generator the key has seeded")


def _built(trial: Trial) -> Block:
    with fork_rng(random_key(trial.seed, NODE, "initial", 0), torch.device("cpu")):
        return trial.block_class(trial.inputs, trial.options)


def _tensors(block: nn.Module) -> dict[str, Tensor]:
    return {**dict(block.named_parameters()), **dict(block.named_buffers())}


def _same_memory(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.numel() > 0 and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr())
