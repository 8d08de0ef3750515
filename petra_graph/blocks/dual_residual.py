"""Residual blocks of a network, used as they are, in a reversible chain.

    the network itself    x_{n+1} = B(x_n) = x_n + F(x_n)                   whatever B does after its addition
    dual residual         x_{n+1} = B(x_n) + (a - 1) x_n + b x_{n-1}        (n, x) -> (x, (n - B(x) - (a - 1) x) / b)
    the first block       x_1 = B(x_0) + (a - 1) x_0                        one stream in; it hands on its input, exact

Zhao et al. 2024, "Dr2Net: Dynamic Reversible Dual-Residual Networks for Memory-Efficient Finetuning", https://arxiv.org/abs/2401.04105,
equation 1, where the second stream is y_n = b x_{n-1}; here it is x_{n-1} itself, which is handed on without rounding. With a = 1 and b near
0 the network computes what the pretrained one does; then the inverse divides by a small number, so that errors grow by 1 / b a block.

Decision: a and b are parameters that ask for no gradient. A callback may then move them, checkpoints and weights hold them, and methods
that keep the parameters of a forward keep them too.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from petra_graph.blocks.block_kinds import Reversed, Reversible, Shape, Streams
from petra_graph.blocks.couplings import ResidualCoupling, residual_value, undo_sum

COEFFICIENTS = ("alpha", "beta")
"""The names of a and b in weights."""


def _above_zero(value: float) -> None:
    if value <= 0:
        raise ValueError("must be above 0")


Alpha = Annotated[float, "coefficient of the block's own residual connection at the start"]
Beta = Annotated[float, "coefficient of the reversible residual connection at the start", _above_zero]


def _coefficient(value: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(value), requires_grad=False)


class DualResidualEntry(Reversible):
    """The first block of a chain: x -> (B(x) + (a - 1) x, x); write `residual`, which returns B(x), of x's shape."""

    streams = 1
    begun_anew = COEFFICIENTS

    def __init__(self, inputs: Sequence[Shape], *, alpha: Alpha = 1.0, **options: Any) -> None:
        super().__init__(inputs, **options)
        self.alpha = _coefficient(alpha)

    @abstractmethod
    def residual(self, x: Tensor) -> Tensor:
        """Return B(x), of x's shape."""

    def forward(self, x: Tensor) -> Streams:  # type: ignore[override]
        return self.residual(x) + (self.alpha - 1.0) * x, x

    def inverse(self, _: Tensor, x: Tensor) -> Streams:  # type: ignore[override]
        return (x,)


class DualResidualStep(ResidualCoupling):
    """A further block: (x, previous) -> (B(x) + (a - 1) x + b previous, x); write `residual`, which returns B(x)."""

    begun_anew = COEFFICIENTS

    def __init__(self, inputs: Sequence[Shape], *, alpha: Alpha = 1.0, beta: Beta = 0.1, **options: Any) -> None:
        super().__init__(inputs, **options)
        self.alpha, self.beta = _coefficient(alpha), _coefficient(beta)

    def forward(self, x: Tensor, previous: Tensor, *context: Tensor) -> Streams:  # type: ignore[override]
        return previous * self.beta + _own_connection(self, x, *context), x, *context

    def inverse(self, following: Tensor, x: Tensor, *context: Tensor) -> Streams:  # type: ignore[override]
        return x, (following - _own_connection(self, x, *context)) / self.beta, *context

    def reverse_vjp(self, outputs: Streams, gradients: Streams) -> Reversed:
        return undo_sum(partial(_own_connection, self), outputs, gradients, at=0, to=1, b=self.beta)


def _own_connection(block: DualResidualStep, x: Tensor, *context: Tensor) -> Tensor:
    """Return (a - 1) x + B(x)."""
    # B first: autograd adds the gradients of x in an order that follows from that of its uses.
    value = residual_value(block.residual, x, *context)
    return x * (block.alpha - 1.0) + value
