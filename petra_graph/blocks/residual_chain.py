"""Chains of residual blocks made reversible: any block B of a network is used as it is, whatever it does after its addition.

    the network itself    x_{n+1} = B(x_n) = x_n + F(x_n)
    dual residual         x_{n+1} = B(x_n) + (a - 1) x_n + b x_{n-1}           x_{n-1} = (x_{n+1} - B(x_n) - (a - 1) x_n) / b
    midpoint              x_{n+1} = x_{n-1} + 2 (B(x_n) - x_n)                 x_{n-1} = x_{n+1} - 2 (B(x_n) - x_n)
    the first block       x_1 = B(x_0) + (a - 1) x_0, or B(x_0), which is one step of Euler's method

Each block is (x_n, x_{n-1}) -> (x_{n+1}, x_n). The first one has one stream, and hands on its input, exact.

Dual residual: Zhao et al. 2024, "Dr2Net: Dynamic Reversible Dual-Residual Networks for Memory-Efficient Finetuning",
https://arxiv.org/abs/2401.04105, equation 1, where the second stream is y_n = b x_{n-1}; here it is x_{n-1} itself, which is handed on
without rounding. With a = 1 and b near 0 the network computes what the pretrained one does; then the inverse divides by a small number, so
that errors grow by 1 / b a block. Moving a and b while the network trains brings both (the callback `dual-residual-schedule`).

Midpoint: Gal et al. 2025, "Reversing Large Language Models for Efficient Training and Fine-Tuning", https://arxiv.org/abs/2512.02056,
p_{n+1} = p_{n-1} + 2 h F(p_n), for a step h of 1. Their blend c p_{n-1} + (1 - c) p_n + F(p_n) is a dual residual block with a = 1 - c, b = c.
Errors do not grow by midpoint's inverse. It is another function than the network: each block's F acts twice, on every other state.

Decision: a and b are parameters that ask for no gradient. A schedule may then move them, checkpoints and weights hold them, and methods that
keep the parameters of a forward keep them too.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from petra_graph.blocks.block_kinds import Reversible, Shape, Streams
from petra_graph.blocks.couplings import Coefficients, TwoStepCoupling

COEFFICIENTS = ("alpha", "beta")
"""The names of a and b, by which a schedule knows them."""


def _above_zero(value: float) -> None:
    if value <= 0:
        raise ValueError("must be above 0")


Alpha = Annotated[float, "coefficient of the block's own residual connection at the start"]
Beta = Annotated[float, "coefficient of the reversible residual connection at the start", _above_zero]


def _coefficient(value: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(value), requires_grad=False)


class MidpointEntry(Reversible):
    """The first block of a chain: x -> (B(x), x); write `residual`, which returns B(x)."""

    streams = 1

    @abstractmethod
    def residual(self, x: Tensor) -> Tensor:
        """Return B(x), of x's shape."""

    def forward(self, x: Tensor) -> Streams:  # type: ignore[override]
        return self.residual(x), x

    def inverse(self, _: Tensor, x: Tensor) -> Streams:  # type: ignore[override]
        return (x,)


class MidpointStep(TwoStepCoupling):
    """A further block: (x, previous) -> (previous + 2 (B(x) - x), x); `residual` returns B(x)."""

    def coefficients(self, x: Tensor) -> Coefficients:
        return Coefficients(-2.0, 1.0, 2.0)


class DualResidualEntry(MidpointEntry):
    """The first block of a chain: x -> (B(x) + (a - 1) x, x); write `residual`."""

    begun_anew = COEFFICIENTS

    def __init__(self, inputs: Sequence[Shape], *, alpha: Alpha = 1.0, **options: Any) -> None:
        super().__init__(inputs, **options)
        self.alpha = _coefficient(alpha)

    def forward(self, x: Tensor) -> Streams:  # type: ignore[override]
        return self.residual(x) + (self.alpha - 1.0) * x, x


class DualResidualStep(TwoStepCoupling):
    """A further block: (x, previous) -> (B(x) + (a - 1) x + b previous, x); write `residual`."""

    begun_anew = COEFFICIENTS

    def __init__(self, inputs: Sequence[Shape], *, alpha: Alpha = 1.0, beta: Beta = 0.1, **options: Any) -> None:
        super().__init__(inputs, **options)
        self.alpha, self.beta = _coefficient(alpha), _coefficient(beta)

    def coefficients(self, x: Tensor) -> Coefficients:
        return Coefficients(self.alpha - 1.0, self.beta, 1.0)
