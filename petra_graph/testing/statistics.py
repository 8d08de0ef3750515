"""Running statistics count every micro-batch once, in the evaluation whose graph is differentiated."""

from __future__ import annotations

import torch
from torch import Tensor

from petra_graph.blocks import Block
from petra_graph.testing.harness import MICRO_BATCHES, Harness, gradients_for
from petra_graph.testing.promise import BrokenPromise, relative_error, tolerance
from petra_graph.testing.trial import Trial

PROMISE = "statistics"
REMEDY = (
    "hold running statistics in buffers of a submodule with an attribute `track_running_stats`, "
    "and update them only where it is true and the module is training"
)


def check_statistics(trial: Trial) -> None:
    """A forward without a graph leaves all buffers alone; forward and backward together update them once."""
    harness, plain = Harness(trial), Harness(trial)
    for m in range(MICRO_BATCHES):
        inputs = harness.inputs(m)
        before = _buffers(harness.block)
        harness.peek(m, inputs)
        changed = [name for name, value in _buffers(harness.block).items() if not torch.equal(value, before[name])]
        if changed:
            found = f"{', '.join(changed)} changed in a forward without a graph, so each micro-batch counts twice"
            raise BrokenPromise(PROMISE, found, REMEDY)
        outputs = harness.forward(m, inputs)
        gradients = gradients_for(m, outputs)
        harness.backward(m, outputs, gradients)
        plain.plain_pass(m, inputs, gradients)
        _compare(_buffers(harness.block), _buffers(plain.block), before)


def _compare(found: dict[str, Tensor], expected: dict[str, Tensor], before: dict[str, Tensor]) -> None:
    for name, value in found.items():
        if not relative_error([value], [expected[name]]) <= tolerance(torch.float64):
            moved, once = (relative_error([after], [before[name]]) for after in (value, expected[name]))
            message = (
                f"over forward and backward of one micro-batch {name} moved by {moved:.2e} relative; "
                f"one training forward moves it by {once:.2e}"
            )
            raise BrokenPromise(PROMISE, message, REMEDY)


def _buffers(block: Block) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in block.named_buffers()}
