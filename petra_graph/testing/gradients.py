"""A block's backward gives the gradients of plain autograd."""

from __future__ import annotations

import torch
from torch import Tensor

from petra_graph.blocks import Block
from petra_graph.testing.passage import Rig, plain_pass, train
from petra_graph.testing.promise import BrokenPromise, expect_close
from petra_graph.testing.trial import Trial

REMEDY = (
    "differentiate one evaluation of each function at the input's own value with petra_graph.blocks.backpropagate; "
    "it adds to `grad`, since gradients of a window of micro-batches add up"
)


def check_gradients(trial: Trial) -> None:
    """Gradients of inputs and parameters are plain autograd's, summed over the micro-batches of a window.

    Errors are taken over all parameters together: a bias before batch normalisation has no gradient but rounding.
    """
    promise = "gradients"
    numerics = trial.numerics("float64")
    block, plain = trial.build(numerics), trial.build(numerics)
    values = [parameter.detach().clone() for parameter in block.parameters()]
    passages = train(trial, Rig(block, numerics))
    for passage in passages:
        _, expected = plain_pass(plain, numerics, passage.m, passage.inputs, passage.gradients)
        pairs = [pair for pair in zip(passage.found.gradients, expected, strict=True) if pair[1].numel()]
        if any(one.shape != other.shape for one, other in pairs):
            raise BrokenPromise(promise, "an input's gradient has not the input's shape", REMEDY)
        what = "the gradient of the input is not plain autograd's"
        expect_close(
            promise, what, [one for one, _ in pairs], [other for _, other in pairs], dtype=torch.float64, remedy=REMEDY
        )
    what = f"the gradient of the parameters over {len(passages)} micro-batches is not plain autograd's"
    expect_close(promise, what, _gradients(block), _gradients(plain), dtype=torch.float64, remedy=REMEDY)
    if not all(torch.equal(one, other) for one, other in zip(values, block.parameters(), strict=True)):
        raise BrokenPromise(promise, "forward or backward changed parameters", "leave them to the optimizer")


def _gradients(block: Block) -> list[Tensor]:
    return [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for parameter in block.parameters()
        if parameter.requires_grad
    ]
