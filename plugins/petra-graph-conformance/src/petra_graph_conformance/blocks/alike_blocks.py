"""A block is built whole, from its key alone, and shares nothing with another node's."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from petra_graph.blocks import Block
from petra_graph.blocks.parameter_groups import stated_fault
from petra_graph.blocks.randomness import fork_rng, random_key
from petra_graph.blocks.tensor_faults import tensor_fault
from petra_graph.kinds.generators import seeded
from petra_graph_conformance.blocks.block_trial import NODE, Trial
from petra_graph_conformance.blocks.micro_batches_through_block import Harness
from petra_graph_conformance.broken_promise import BrokenPromise, expect_close
from petra_graph_conformance.moved_generators import states


def check_construction(trial: Trial) -> None:
    """Two blocks built with one key are equal and share no tensor; all tensors have shapes and are registered; `undecayed` and `tables` name some.

    The constructor seeds no generator.

    Optimizers, memory plans and processes see the parameters before the first forward; nodes are trained apart from one another,
    each in a stage that may be in another process.
    """
    (one, before, reseeded), (other, after, _) = _built(trial, 0), _built(trial, 1)
    if (wrong := tensor_fault(one)) is not None:
        raise BrokenPromise("construction", f"the block {wrong.found}", wrong.remedy)
    fault = stated_fault(one)
    if fault:
        raise BrokenPromise("construction", f"the block {fault}", "name parameters as `named_parameters()` does")
    seeds = [name for name in before if before[name] == after[name] and (reseeded or name != "torch")]
    if seeds:
        found = (
            f"its constructor seeds the generator of {' and '.join(seeds)}, so that all nodes of the block begin alike"
        )
        remedy = (
            "seed nothing, since the key of each node has done so; draw fixed numbers from a torch.Generator of its own"
        )
        raise BrokenPromise("construction", found, remedy)
    names = [{name: tensor.shape for name, tensor in _tensors(block).items()} for block in (one, other)]
    if names[0] != names[1]:
        of = ", ".join(sorted(name for name, _ in names[0].items() ^ names[1].items()))
        found = f"two blocks of one key have other parameters and buffers, or of other shapes: {of}"
        raise BrokenPromise("construction", found, "let names and shapes follow from inputs and options alone")
    shared = [name for name, tensor in _tensors(one).items() if _same_memory(tensor, _tensors(other)[name])]
    if shared:
        found = f"two blocks share {', '.join(shared)}, and would be two nodes of different stages"
        raise BrokenPromise("construction", found, "make parameters and buffers in __init__, one for each block")
    differing = [name for name, tensor in _tensors(one).items() if not torch.equal(tensor, _tensors(other)[name])]
    if differing:
        found = f"two blocks of one key begin with other values in {', '.join(differing)}"
        raise BrokenPromise("construction", found, "draw initial values with torch, whose generator the key has seeded")


def _built(trial: Trial, other: int) -> tuple[Block, Mapping[str, bytes], bool]:
    """Build a block with the trial's key.

    Returns:
        the block; the states in which it leaves the generators, which began alike for torch alone; whether it has seeded torch's.
    """
    key = random_key(trial.seed, NODE, "initial", 0)
    with seeded(trial.seed + other), fork_rng(key, torch.device("cpu")):
        block = trial.block_class(trial.inputs, trial.options)
        return block, states(), torch.initial_seed() != key


def check_same_block(trial: Trial) -> None:
    """Two blocks built with one key give the same outputs: what differs between blocks is in parameters and buffers alone."""
    one, other = Harness(trial), Harness(trial)
    inputs = one.inputs(0)
    remedy = "draw in the constructor with torch, and count nothing there; hold what is drawn in register_buffer"
    found = "two blocks of one key, of the same parameters and buffers, give other outputs"
    expect_close("same block", found, other.peek(0, inputs), one.peek(0, inputs), remedy=remedy)


def _tensors(block: nn.Module) -> dict[str, Tensor]:
    return {**dict(block.named_parameters()), **dict(block.named_buffers())}


def _same_memory(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.numel() > 0 and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr())
