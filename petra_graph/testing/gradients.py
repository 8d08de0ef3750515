"""A block's backward gives the gradients of plain autograd."""

from __future__ import annotations

import torch
from torch import Tensor

from petra_graph.blocks import Block
from petra_graph.testing.harness import Harness
from petra_graph.testing.promise import BrokenPromise, all_equal, expect_close
from petra_graph.testing.trial import Trial

PROMISE = "gradients"
REMEDY = (
    "differentiate one evaluation of each function at the input's own value with petra_graph.blocks.backpropagate; "
    "it adds to `grad`, since gradients of a window of micro-batches add up"
)


def check_gradients(trial: Trial) -> None:
    """Gradients of inputs and parameters are plain autograd's, summed over the micro-batches of a window.

    Errors are taken over all parameters together: a bias before batch normalisation has no gradient but rounding.
    """
    harness, plain = Harness(trial), Harness(trial)
    values = [parameter.detach().clone() for parameter in harness.block.parameters()]
    trips = harness.train()
    for trip in trips:
        _, expected = plain.plain_pass(trip.m, trip.inputs, trip.gradients)
        pairs = [pair for pair in zip(trip.reverse.gradients, expected, strict=True) if pair[1].numel()]
        if any(one.shape != other.shape for one, other in pairs):
            raise BrokenPromise(PROMISE, "an input's gradient has not the input's shape", REMEDY)
        found, of_plain = [one for one, _ in pairs], [other for _, other in pairs]
        expect_close(PROMISE, "the gradient of the input is not plain autograd's", found, of_plain, remedy=REMEDY)
    subject = f"the gradient of the parameters over {len(trips)} micro-batches"
    found, of_plain = _gradients(harness.block), _gradients(plain.block)
    expect_close(PROMISE, f"{subject} is not plain autograd's", found, of_plain, remedy=REMEDY)
    if not all_equal(values, list(harness.block.parameters())):
        raise BrokenPromise(PROMISE, "forward or backward changed parameters", "leave them to the optimizer")


def _gradients(block: Block) -> list[Tensor]:
    return [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for parameter in block.parameters()
        if parameter.requires_grad
    ]
