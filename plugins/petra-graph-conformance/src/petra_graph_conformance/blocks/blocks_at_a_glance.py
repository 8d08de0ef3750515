"""A block's promises at a glance, for real shapes: about a dozen evaluations in float32, where the kit does a hundred in float64.

    forward of m = 0, twice      same outputs, nothing moved: no state, no generator, no input
    forward of m = 1             another state of torch's generator, where the block draws; and a second micro-batch in flight
    backward, inverse of m = 0   the inputs
    a plain pass of m = 0        the same outputs and gradients of another block of the same key, one update of the running statistics
    an evaluation                nothing drawn or moved; a batch gives the outputs of its samples one by one

Decision: a glance only passes blocks. What looks wrong here is examined by the kit, which says what it is, and how wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from petra_graph.blocks import Block, Reversible, Streams
from petra_graph.blocks.moving_state import Held, moved, state_of
from petra_graph.kinds.generators import moved_since, states
from petra_graph_conformance.blocks.alike_blocks import check_construction
from petra_graph_conformance.blocks.block_trial import Trial
from petra_graph_conformance.blocks.inverse_and_gradients import gradients_of
from petra_graph_conformance.blocks.micro_batches_through_block import Harness, gradients_for
from petra_graph_conformance.blocks.repeatable_evaluation import batch_and_rows, seeds_itself
from petra_graph_conformance.broken_promise import all_equal, relative_error, tolerance

_DTYPE = torch.float32
_GRADIENT = 0.01
"""The relative error that gradients may have here."""


def looks_sound(trial: Trial) -> bool:
    """Whether a block seems to keep its promises; whatever it raises says that it does not."""
    try:
        check_construction(trial)
        return _sound(Harness(trial, "float32"), Harness(trial, "float32"))
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001  the kit examines what is raised
        return False


def _sound(harness: Harness, plain: Harness) -> bool:
    block, inputs = harness.block, harness.inputs(0)
    copies = tuple(stream.clone() for stream in inputs)
    held, generators = Held.by(block), states()
    with harness.without_graph():
        before = torch.get_rng_state()
        outputs: Any = block(*inputs)
        draws = not torch.equal(before, torch.get_rng_state())
    if not _are_streams(outputs, len(inputs[0])):
        return False
    remembered, buffers = state_of(block), _buffers(block)
    first, _ = harness.forward(0, inputs), harness.forward(1, inputs)
    still = not set(moved(remembered, state_of(block))) - set(buffers)
    still = still and (not _is_body(harness) or _equal(buffers, _buffers(block)))
    repeats = all_equal(first, outputs) and not (draws and seeds_itself(harness, inputs))
    if held.made(block) or held.written(block) or not still or not repeats:
        return False
    gradients = gradients_for(0, first)
    reverse = harness.backward(0, first, gradients)
    if isinstance(block, Reversible) and not all(
        _close(found, inputs) for found in (reverse.inputs, harness.invert(0, first))
    ):
        return False
    again, of_inputs = plain.plain_pass(0, inputs, gradients)
    if not _is_body(harness):  # A head's forward has a graph, and has seen the second micro-batch as well.
        plain.plain_pass(1, inputs, gradients_for(1, first))
    return (
        _close(again, first)
        and _alike(reverse.gradients, of_inputs)
        and _alike(gradients_of(block), gradients_of(plain.block))
        and all_equal(inputs, copies)
        and _close(list(_buffers(block).values()), list(_buffers(plain.block).values()))
        and not moved_since(generators)
        and _evaluates(plain.block, inputs)
    )


def _evaluates(block: Block, inputs: Streams) -> bool:
    """Whether a block in evaluation mode draws nothing, leaves its buffers, and takes each sample by itself."""
    block.eval()
    generators, buffers = states(), _buffers(block)
    whole, rows = batch_and_rows(block, inputs)
    return not moved_since(generators) and _equal(buffers, _buffers(block)) and _close(rows, whole)


def _is_body(harness: Harness) -> bool:
    return harness.block.kind != "head"


def _are_streams(outputs: Any, samples: int) -> bool:
    """Whether outputs are a tuple of float32 tensors with the batch first; the kit judges others."""
    return (
        isinstance(outputs, tuple)
        and bool(outputs)
        and all(isinstance(one, Tensor) and one.dtype == _DTYPE and one.shape[:1] == (samples,) for one in outputs)
    )


def _close(found: Streams | list[Tensor], expected: Streams | list[Tensor]) -> bool:
    same = [one.shape for one in found] == [one.shape for one in expected]
    return same and relative_error(found, expected) <= tolerance(_DTYPE)


def _alike(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Whether gradients are the same but for a hundredth: a ReLU at its kink may differ at a reconstructed input."""
    pairs = [pair for pair in zip(found, expected, strict=True) if pair[1].numel()]  # none of streams of integers
    if any(one.shape != other.shape for one, other in pairs):
        return False
    errors, sizes = zip(
        *[(float((one - other).norm()), float(other.norm())) for one, other in pairs] or [(0, 0)], strict=True
    )
    return math.hypot(*errors) <= _GRADIENT * math.hypot(*sizes)


def _buffers(block: Any) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in block.named_buffers()}


def _equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
