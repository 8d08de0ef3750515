"""Couplings that are two-step methods for differential equations: the next state from the last two.

    x_{n+1} = a x_n + b x_{n-1} + c F(x_n)              (x, previous) -> (next, x)
    x_{n-1} = (x_{n+1} - a x_n - c F(x_n)) / b

| coupling | a | b | c | source |
|---|---|---|---|---|
| `MidpointCoupling` | 0 | 1 | 2h | Chang et al. 2018, https://arxiv.org/abs/1709.03698, the midpoint network, for x' = F(x) |
| `LeapfrogCoupling` | 2 | -1 | h^2 | the same, the leapfrog network, for x'' = F(x) |
| `BdiaCoupling` | 1 - g | g | 1 + g | Zhang et al. 2024, https://arxiv.org/abs/2407.09093 (`bdia`) |
| `MomentumCoupling` | 1 + g | -g | 1 - g | in other variables (`momentum`) |

Rounding: the inverse divides by b, so an error of the output grows by 1 / |b| a block. With |b| = 1 it stays, but for
what a and F add: the leapfrog's grows linearly in depth, the midpoint's not at all where F is small.

The midpoint with 2h = 1 is the swap form of `AdditiveCoupling`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

from attrs import frozen
from torch import Tensor

from petra_graph.blocks.block_kinds import Streams, Undo, Undone
from petra_graph.blocks.couplings.additive import Additive
from petra_graph.blocks.couplings.coupling import Coupling
from petra_graph.blocks.couplings.evaluated_function import evaluate, is_number, residual_value, scaled, sums
from petra_graph.blocks.grid import on_grid


@frozen
class Coefficients:
    """Of one step: numbers, or tensors that broadcast against a stream."""

    a: float | Tensor
    """Of the current state."""
    b: float | Tensor
    """Of the previous state; zero nowhere."""
    c: float | Tensor
    """Of the residual function."""


class TwoStepCoupling(Coupling):
    """The general form: write `residual` and `coefficients`."""

    @abstractmethod
    def coefficients(self, x: Tensor) -> Coefficients:
        """Return a, b and c for the state `x`; they follow from its shape, and from torch's generator: each pass draws them first."""

    @abstractmethod
    def residual(self, x: Tensor, *context: Any, **_: Any) -> Tensor:
        """Return F(x), of x's shape."""

    def forward(self, x: Tensor, previous: Tensor, *context: Tensor) -> Streams:  # type: ignore[override]
        """Return (a x + b previous + c F(x), x)."""
        step = self.coefficients(x)
        return scaled(previous, step.b) + _increment(self, step, x, *context), x, *context

    def inverse(self, following: Tensor, x: Tensor, *context: Tensor) -> Streams:  # type: ignore[override]
        """Return (x, (following - a x - c F(x)) / b)."""
        step = self.coefficients(x)
        return x, _divided(following - _increment(self, step, x, *context), step.b), *context

    def reverse_steps(self) -> Sequence[Undo]:
        """Return the one step of F."""
        return (partial(_undone, self),)


def _undone(block: TwoStepCoupling, outputs: Streams) -> Undone:
    following, x, *context = outputs
    step = block.coefficients(x)
    evaluation = evaluate(partial(_increment, block, step), x, *context)

    def vjp(gradients: Streams) -> Streams:
        d_following, passed_x, *passed = gradients
        dx, *found = evaluation.vjp(d_following)
        return dx.add_(passed_x), scaled(d_following, step.b), *sums(found, passed)

    return Undone(lambda: (x, _divided(following - evaluation.values[0], step.b), *context), vjp)


def _increment(block: TwoStepCoupling, step: Coefficients, x: Tensor, *context: Tensor) -> Tensor:
    """Return a x + c F(x), as it is added to the stream."""
    value = residual_value(block.residual, x, *context)
    value = on_grid(value if is_number(step.c, 1.0) else value.to(x.dtype) * step.c, x)
    return value if is_number(step.a, 0.0) else scaled(x, step.a) + value


def _divided(stream: Tensor, by: float | Tensor) -> Tensor:
    return stream if is_number(by, 1.0) else stream / by


class MidpointCoupling(TwoStepCoupling, Additive):
    """x_{n+1} = x_{n-1} + 2h F(x_n), with h = `step_size`; exact on a grid."""

    step_size: float = 0.5

    def coefficients(self, x: Tensor) -> Coefficients:
        """Return 0, 1, 2h."""
        return Coefficients(0.0, 1.0, 2.0 * self.step_size)


class LeapfrogCoupling(TwoStepCoupling, Additive):
    """x_{n+1} = 2 x_n - x_{n-1} + h^2 F(x_n), with h = `step_size`; exact on a grid."""

    step_size: float = 1.0

    def coefficients(self, x: Tensor) -> Coefficients:
        """Return 2, -1, h^2."""
        return Coefficients(2.0, -1.0, self.step_size**2)
