"""Streams on a grid of multiples of 2^-q, on which additive couplings reconstruct to the bit.

Where every term of x + F(x) is a multiple of 2^-q and every sum stays below 2^(24-q), a float32 addition is exact, and
so is the subtraction that undoes it, at any depth, with F in float32 or bfloat16. All values that enter the streams are
rounded: the outputs of buffered nodes, and every residual function's value. The gradient ignores the rounding.

A grid removes rounding error, not the effect of parameters that changed in between; and it needs a residual function
that gives the same bits twice.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, cast

import torch
from torch import Tensor

_bits: ContextVar[int | None] = ContextVar("petra_graph_grid_bits", default=None)


class grid:  # noqa: N801  it is used like a function: `with grid(...):`
    """Run with streams on the grid of multiples of 2^-bits; None: without a grid. It may be entered again, not within itself."""

    def __init__(self, bits: int | None) -> None:
        self.bits = bits

    def __enter__(self) -> None:
        self._token = _bits.set(self.bits)

    def __exit__(self, *_: object) -> None:
        _bits.reset(self._token)


grid_bits = _bits.get
"""Returns the bits of the grid in force, None without a grid."""


def on_grid(value: Tensor, like: Tensor) -> Tensor:
    """Round `value` to the grid in force, in the type of the stream `like`; without a grid, return `value`."""
    bits = _bits.get()
    return value if bits is None else rounded(value.to(like.dtype), bits)


def rounded(value: Tensor, bits: int) -> Tensor:
    """Round to multiples of 2^-bits, with a straight-through gradient."""
    return cast(Tensor, _Round.apply(value, bits))


def grid_limit(dtype: torch.dtype, bits: int) -> float:
    """Return the magnitude above which sums of grid values are no longer exact."""
    return float(2.0 / torch.finfo(dtype).eps / 2**bits)


class _Round(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, value: Tensor, bits: int) -> Tensor:
        """Scale by a power of two, which is exact, round, and scale back."""
        return (value * 2.0**bits).round_().mul_(2.0**-bits)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Pass the gradient straight through."""
        return gradient, None
