"""Momentum residual networks: the state moves by a velocity, which the residual function pulls.

    v_{n+1} = g v_n + (1 - g) F(x_n)            x_n = x_{n+1} - v_{n+1}
    x_{n+1} = x_n + v_{n+1}                     v_n = (v_{n+1} - (1 - g) F(x_n)) / g

Sander, Ablin, Blondel and Peyre 2021 (ICML), https://arxiv.org/abs/2102.07870. A residual network becomes one of
these with its parameters unchanged, and behaves like it as g goes to 0; the velocity begins with zero.

Rounding: the inverse divides by g, so an error of v grows by 1 / g a block, g^-L over L blocks: 38,000 for g = 0.9
and 100 blocks, where float32 keeps two digits of seven. Take g near 1 in deep stacks, or anchor.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor

from petra_graph.blocks.block_kinds import Streams, Undo, Undone
from petra_graph.blocks.couplings.coupling import Coupling
from petra_graph.blocks.couplings.evaluated_function import evaluate, residual_value, sums


class MomentumCoupling(Coupling):
    """(x, v) -> (x + v', v') with v' = g v + (1 - g) F(x); write `residual`. g is `momentum`, in (0, 1]."""

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
        """Return the one step of F."""
        return (partial(_undone, self),)


def _undone(block: MomentumCoupling, outputs: Streams) -> Undone:
    y, velocity, *context = outputs
    x = y - velocity
    evaluation = evaluate(partial(_pull, block), x, *context)

    def vjp(gradients: Streams) -> Streams:
        dy, d_velocity, *passed = gradients
        d_velocity = dy + d_velocity
        dx, *found = evaluation.vjp(d_velocity)
        # In place: no parameter's gradient waits for this tensor, since the pull ends in a product with a number.
        return dx.add_(dy), d_velocity.mul_(block.momentum), *sums(found, passed)

    return Undone(lambda: (x, (velocity - evaluation.values[0]) / block.momentum, *context), vjp)


def _pull(block: MomentumCoupling, x: Tensor, *context: Tensor) -> Tensor:
    """Return (1 - g) F(x), in x's type."""
    return residual_value(block.residual, x, *context).to(x.dtype) * (1.0 - block.momentum)
