"""Micro-batches through a block and back, in the runner that training would put it in.

    forwards of m = 0, 1, 2, then their backwards in the same order: as in a stage of depth 3

Decision: promises are checked through the executor's own runners, so that what the kit accepts is what training needs.
"""

# m micro-batch

from __future__ import annotations

from collections.abc import Mapping

import torch
from attrs import frozen
from torch import Tensor

from petra_graph.blocks import Block, Head, Reversed, Reversible, Streams, backpropagate, frozen_statistics, leaf
from petra_graph.blocks.randomness import random_key
from petra_graph.executor.numerics import NumericsContext
from petra_graph.executor.segment_runners import BodyRunner, HeadRunner, Recompute, Reconstruct
from petra_graph.testing.trial import NODE, Trial, normal

MICRO_BATCHES = 3


@frozen(kw_only=True)
class Passage:
    """One micro-batch through a block and back."""

    m: int
    inputs: Streams
    outputs: Streams
    gradients: Streams
    """The loss's gradient with respect to the outputs."""
    found: Reversed


class Rig:
    """A block in its runner: reversible ones keep nothing, buffered ones their input, the head's loss is linear."""

    def __init__(self, block: Block, numerics: NumericsContext) -> None:
        self.block = block
        self.numerics = numerics
        self._loss = _Projection()
        modules = {NODE: block}
        self._runner: BodyRunner | HeadRunner
        if isinstance(block, Head):
            self._runner = HeadRunner(modules, numerics, reads_samples=False, loss=self._loss)
        else:
            kept = Reconstruct if isinstance(block, Reversible) else Recompute
            self._runner = kept(modules, numerics, reads_samples=False)

    def peek(self, m: int, inputs: Streams) -> Streams:
        """Return the outputs of a training micro-batch; nothing remembers it."""
        return self._runner.run_without_graph(m, inputs)

    def forward(self, m: int, inputs: Streams) -> Streams:
        """Run the forward of a training micro-batch."""
        if isinstance(self._runner, BodyRunner):
            return self._runner.forward(m, inputs)
        (output,) = self.peek(m, inputs)
        self._runner.forward_backward(m, inputs, *gradients_for(m, (output,)))
        return (self._loss.output,)

    def backward(self, m: int, outputs: Streams, gradients: Streams) -> Reversed:
        """Run the backward of the first micro-batch that is still open."""
        return self._runner.backward(m, outputs if isinstance(self.block, Reversible) else None, gradients)


def train(trial: Trial, rig: Rig, count: int = MICRO_BATCHES) -> tuple[Passage, ...]:
    """Run micro-batches as a stage of depth `count` does; parameter gradients add up."""
    inputs = [trial.streams(rig.numerics, m) for m in range(count)]
    outputs = [rig.forward(m, streams) for m, streams in enumerate(inputs)]
    passages = []
    for m in range(count):
        gradients = gradients_for(m, outputs[m])
        found = rig.backward(m, outputs[m], gradients)
        passages.append(Passage(m=m, inputs=inputs[m], outputs=outputs[m], gradients=gradients, found=found))
    return tuple(passages)


def gradients_for(m: int, outputs: Streams) -> Streams:
    """Draw the loss's gradient with respect to each output of a micro-batch."""
    generator = torch.Generator().manual_seed(random_key("gradient", m))
    return tuple(normal(tuple(stream.shape), generator).to(stream.dtype) for stream in outputs)


def plain_pass(
    block: Block, numerics: NumericsContext, m: int, inputs: Streams, gradients: Streams
) -> tuple[Streams, Streams]:
    """Run a block under plain autograd.

    Returns:
        the outputs, and the gradient of the inputs; parameter gradients are added to `grad`.
    """
    leaves = tuple(leaf(stream) for stream in inputs)
    with numerics.node(NODE, m):
        outputs = block(*leaves)
    return tuple(stream.detach() for stream in outputs), backpropagate(outputs, gradients, leaves)


def invert(block: Reversible, numerics: NumericsContext, m: int, outputs: Streams) -> Streams:
    """Run a block's inverse as a training micro-batch does."""
    with torch.no_grad(), frozen_statistics(block), numerics.node(NODE, m):
        return block.inverse(*outputs)


class _Projection:
    """A loss whose gradient with respect to the output is its target."""

    output: Tensor

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        self.output = output.detach()
        return (output * target).sum()

    def metrics(self, output: Tensor, target: Tensor) -> Mapping[str, Tensor]:
        """Count nothing."""
        return {}
