"""Bidirectional integration approximation: a plain residual network, whose training runs reversibly.

    training      x_{n+1} = (1 - g) x_n + g x_{n-1} + (1 + g) F(x_n)      each sample draws g, 0.5 or -0.5
    evaluation    x_{n+1} = x_n + F(x_n)                                  g = 0, its mean

Zhang, Lewis and Kleijn 2024 (ICML 2025), https://arxiv.org/abs/2407.09093. The step cannot be inverted in evaluation, where
it does not depend on x_{n-1}.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from attrs import frozen
from torch import Tensor

from petra_graph.blocks.block_kinds import Streams, Undo, Undone
from petra_graph.blocks.couplings.additive import Additive, undo_sum
from petra_graph.blocks.couplings.coupling import Coupling, residual_value
from petra_graph.blocks.couplings.two_step import Coefficients, TwoStepCoupling
from petra_graph.blocks.grid import grid_bits, rounded


class BdiaCoupling(TwoStepCoupling):
    """The step in floating point: (x, previous) -> (next, x); write `residual`.

    Rounding: the inverse divides by g, so an error at least doubles in every block, and what parameters changed between
    forward and backward does as well: no digit of float32 is left after some 15 blocks. `ExactBdiaCoupling` is for
    deeper stacks with unchanged parameters.
    """

    magnitude: ClassVar[float] = 0.5
    reversible_in_evaluation = False

    def coefficients(self, x: Tensor) -> Coefficients:
        """Return 1 - g, g, 1 + g."""
        g = _signs(x) * self.magnitude if self.training else x.new_zeros(())
        return Coefficients(1.0 - g, g, 1.0 + g)

    def inverse(self, *outputs: Tensor) -> Streams:
        """Return (x, previous)."""
        _expect_training(self)
        return super().inverse(*outputs)

    def reverse_steps(self) -> Sequence[Undo]:
        """Return the one step of F."""
        _expect_training(self)
        return super().reverse_steps()


class ExactBdiaCoupling(Additive):
    """The quantised form, exact to the bit: (x, previous, bits) -> (next, x, bits'); write `residual`.

    Streams are multiples of q = 2^-`quantum_bits`, or of the grid in force. Half of an odd multiple is not a multiple, so an
    odd `previous` is first made even, and whether it was odd is kept (one bit a value):

        odd = previous / q mod 2
        next = round((1 - g) x + (1 + g) F(x)) + g (previous + q odd)
        previous = (next - round(...)) / g - q odd

    The third stream is an int64 tensor of the streams' shape, on which each block pushes its bit: bits' = 2 bits + odd.
    It begins with zeros, and has room for `DEPTH_LIMIT` blocks between two anchors: eight bytes a value, whatever the depth.
    What enters the first block is rounded to the grid. Sums stay exact below 2^24 q in float32.
    """

    streams = 3
    quantum_bits: ClassVar[int] = 9
    reversible_in_evaluation = False

    @abstractmethod
    def residual(self, x: Tensor, *context: Any, **_: Any) -> Tensor:
        """Return F(x), of x's shape."""

    def forward(self, x: Tensor, previous: Tensor, bits: Tensor, *context: Tensor) -> Streams:  # type: ignore[override]
        """Return (next, x, bits')."""
        step = _step(self, x)
        x = rounded(x, step.bits)
        if not self.training:
            return step.increment(self, x, *context), x, bits, *context
        previous = rounded(previous, step.bits)
        odd = (previous.detach() * 2.0**step.bits).long() & 1
        following = step.increment(self, x, *context) + step.g * (previous + odd * 2.0**-step.bits)
        return following, x, 2 * bits + odd, *context

    def inverse(self, following: Tensor, x: Tensor, bits: Tensor, *context: Tensor) -> Streams:  # type: ignore[override]
        """Return (x, previous, bits)."""
        _expect_training(self)
        step = _step(self, x)
        even = (following - step.increment(self, x, *context)) / step.g
        return x, step.odd_again(even, bits), bits >> 1, *context

    def reverse_steps(self) -> Sequence[Undo]:
        """Return the one step of F; the rounding has the gradient of the identity."""
        _expect_training(self)
        return (partial(_exactly_undone, self),)


def _exactly_undone(block: ExactBdiaCoupling, outputs: Streams) -> Undone:
    step = _step(block, outputs[1])
    undone = undo_sum(lambda x, _, *context: step.increment(block, x, *context), 0, 1, outputs, step.g)

    def inputs() -> Streams:
        x, even, bits, *context = undone.inputs()
        return x, step.odd_again(even, bits), bits >> 1, *context

    return Undone(inputs, undone.vjp)


DEPTH_LIMIT = 63
"""The bits of an int64 that can be pushed without a change of sign."""


@frozen
class _Step:
    g: Tensor
    bits: int

    def increment(self, block: ExactBdiaCoupling, x: Tensor, *context: Tensor) -> Tensor:
        value = residual_value(block.residual, x, *context)
        return rounded(x * (1.0 - self.g) + value * (1.0 + self.g), self.bits)

    def odd_again(self, even: Tensor, bits: Tensor) -> Tensor:
        """Return `previous` as it was before it was made even."""
        return even - (bits & 1) * 2.0**-self.bits


def _step(block: ExactBdiaCoupling, x: Tensor) -> _Step:
    g = _signs(x) * 0.5 if block.training else x.new_zeros(())
    bits = grid_bits()
    return _Step(g, block.quantum_bits if bits is None else bits)


def _signs(x: Tensor) -> Tensor:
    """Draw 1 or -1 for each sample, [n, 1, ...]."""
    drawn = torch.randint(2, (len(x), *(1,) * (x.dim() - 1)), device=x.device)
    return drawn.to(x.dtype) * 2.0 - 1.0


def _expect_training(block: Coupling) -> None:
    if not block.training:
        raise RuntimeError(
            f"{type(block).__name__} is in evaluation mode, where its step x + F(x) has no inverse: "
            "reconstruct in training mode, or differentiate with plain autograd"
        )
