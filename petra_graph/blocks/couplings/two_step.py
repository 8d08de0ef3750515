"""Couplings that are two-step methods for differential equations: the next state from the last two.

    x_{n+1} = a x_n + b x_{n-1} + c F(x_n)              (x, previous) -> (next, x)
    x_{n-1} = (x_{n+1} - a x_n - c F(x_n)) / b

| coupling | a | b | c | source |
|---|---|---|---|---|
| `MidpointCoupling` | 0 | 1 | 2h | Chang et al. 2018, https://arxiv.org/abs/1709.03698, the midpoint network, for x' = F(x) |
| `MomentumCoupling` | 1 + g | -g | 1 - g | Sander et al. 2021, https://arxiv.org/abs/2102.07870, in other variables: a state and its velocity |

Rounding: the inverse divides by b, so an error of the output grows by 1 / |b| a block. With |b| = 1 it stays, but for
what F adds.

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
from petra_graph.blocks.couplings.additive import undo_sum
from petra_graph.blocks.couplings.coupling import Coupling, is_number, residual_value, scaled


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
        difference = following - _increment(self, step, x, *context)
        return x, difference if is_number(step.b, 1.0) else difference / step.b, *context

    def reverse_steps(self) -> Sequence[Undo]:
        """Return the one step of F."""
        return (partial(_undone, self),)


def _undone(block: TwoStepCoupling, outputs: Streams) -> Undone:
    step = block.coefficients(outputs[1])
    return undo_sum(partial(_increment, block, step), 0, 1, outputs, None if is_number(step.b, 1.0) else step.b)


def _increment(block: TwoStepCoupling, step: Coefficients, x: Tensor, *context: Tensor) -> Tensor:
    """Return a x + c F(x), as it is added to the stream."""
    value = residual_value(block.residual, x, *context)
    value = value if is_number(step.c, 1.0) else value.to(x.dtype) * step.c
    return value if is_number(step.a, 0.0) else scaled(x, step.a) + value


class MidpointCoupling(TwoStepCoupling):
    """x_{n+1} = x_{n-1} + 2h F(x_n), with h = `step_size`."""

    step_size: float = 0.5

    def coefficients(self, x: Tensor) -> Coefficients:
        """Return 0, 1, 2h."""
        return Coefficients(0.0, 1.0, 2.0 * self.step_size)


class MomentumCoupling(Coupling):
    """Momentum residual networks: the state moves by a velocity, which the residual function pulls.

        v_{n+1} = g v_n + (1 - g) F(x_n)            x_n = x_{n+1} - v_{n+1}
        x_{n+1} = x_n + v_{n+1}                     v_n = (v_{n+1} - (1 - g) F(x_n)) / g

    The streams are (x, v); write `residual`. g is `momentum`, in (0, 1]. A residual network becomes one of these with its parameters unchanged,
    and behaves like it as g goes to 0; the velocity begins with zero.

    Rounding: the inverse divides by g, so an error of v grows by 1 / g a block, g^-L over L blocks: 38,000 for g = 0.9
    and 100 blocks, where float32 keeps two digits of seven. Take g near 1 in deep stacks, or anchor.
    """

    momentum: float = 0.9

    @abstractmethod
    def residual(self, x: Tensor, *context: Any, **_: Any) -> Tensor:
        """Return F(x), of x's shape."""

    def forward(self, x: Tensor, v: Tensor, *context: Tensor) -> Streams:  # type: ignore[override]
        """Return (x + v', v')."""
        velocity = v * self.momentum + _pull(self, x, *context)
        return x + velocity, velocity, *context

    def inverse(self, y: Tensor, velocity: Tensor, *context: Tensor) -> Streams:  # type: ignore[override]
        """Return (x, v)."""
        x = y - velocity
        return x, (velocity - _pull(self, x, *context)) / self.momentum, *context

    def reverse_steps(self) -> Sequence[Undo]:
        """Return the step of the state, and that of its velocity."""
        return _state_undone, partial(undo_sum, partial(_pull, self), 1, 1, b=self.momentum)


def _state_undone(outputs: Streams) -> Undone:
    """Undo y = x + v'."""
    y, velocity, *context = outputs

    def vjp(gradients: Streams) -> Streams:
        dy, d_velocity, *passed = gradients
        return dy, dy + d_velocity, *passed

    return Undone(lambda: (y - velocity, velocity, *context), vjp)


def _pull(block: MomentumCoupling, x: Tensor, *context: Tensor) -> Tensor:
    """Return (1 - g) F(x), in x's type."""
    return residual_value(block.residual, x, *context).to(x.dtype) * (1.0 - block.momentum)
