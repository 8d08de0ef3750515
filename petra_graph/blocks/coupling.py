"""Additive couplings: reversible with any functions inside.

    swap form                       two-function form
    (x, t) -> (t + F(x), x)         y1 = x1 + F(x2);  y2 = x2 + G(y1)
    (y, s) -> (s, y - F(s))         x2 = y2 - G(y1);  x1 = y1 - F(x2)

The residual function's value is needed to reconstruct, and its graph to differentiate: one evaluation in the backward
gives both (PETRA section 4.2; Gomez et al. 2017, https://arxiv.org/abs/1707.04585, algorithm 1).

On a grid of multiples of 2^-q an additive coupling reconstructs to the bit. Where every term of x + F(x) is a multiple
of 2^-q and every sum stays below 2^(24-q), a float32 addition is exact, and so is the subtraction that undoes it, at
any depth, with F in float32 or bfloat16. All values that enter the streams are rounded: the outputs of buffered nodes,
and every residual function's value. The gradient ignores the rounding.

A grid removes rounding error, not the effect of parameters that changed in between; and it needs a residual function
that gives the same bits twice.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import torch
from torch import Tensor

from petra_graph.blocks.base import Reversed, Reversible, Streams, backpropagate, leaf
from petra_graph.blocks.randomness import rng_scope

_bits: ContextVar[int | None] = ContextVar("petra_graph_grid_bits", default=None)


@contextmanager
def grid(bits: int | None) -> Iterator[None]:
    """Run with streams on the grid of multiples of 2^-bits; None: without a grid."""
    token = _bits.set(bits)
    try:
        yield
    finally:
        _bits.reset(token)


def on_grid(value: Tensor, like: Tensor) -> Tensor:
    """Round `value` to the grid in force, in the type of the stream `like`; without a grid, return `value`."""
    bits = _bits.get()
    return value if bits is None else rounded(value.to(like.dtype), bits)


def rounded(value: Tensor, bits: int) -> Tensor:
    """Round to multiples of 2^-bits, with a straight-through gradient."""
    return cast(Tensor, _Round.apply(value, bits))


def grid_limit(dtype: torch.dtype, bits: int) -> float:
    """Return the magnitude from which on sums of grid values are no longer exact."""
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


class Additive(Reversible):
    """A reversible block that only adds to its streams, so that it is exact on a grid."""


class AdditiveCoupling(Additive):
    """The swap form, which RevNets use: write `residual`, and inherit the rest.

    `residual` maps a stream [n, *shape] to one of the same shape.
    """

    streams = 2

    @abstractmethod
    def residual(self, x: Tensor) -> Tensor:
        """Return F(x), of x's shape."""

    def forward(self, x: Tensor, t: Tensor) -> Streams:  # type: ignore[override]
        """Return (t + F(x), x)."""
        return t + _added(self.residual, x, t), x

    def inverse(self, y: Tensor, s: Tensor) -> Streams:  # type: ignore[override]
        """Return (s, y - F(s))."""
        return s, y - _added(self.residual, s, y)

    def reverse_vjp(self, outputs: Streams, gradients: Streams) -> Reversed:
        """Reconstruct and differentiate with one evaluation of F."""
        y, s = outputs
        dy, ds = gradients
        value, dx = _value_and_vjp(lambda x: _added(self.residual, x, y), s, dy)
        return Reversed((s, y - value), (dx.add_(ds), dy))


class TwoFunctionCoupling(Additive):
    """The form of reversible transformers: write `f` and `g`, and inherit the rest."""

    streams = 2

    @abstractmethod
    def f(self, x: Tensor) -> Tensor:
        """Return F(x), of x's shape."""

    @abstractmethod
    def g(self, x: Tensor) -> Tensor:
        """Return G(x), of x's shape."""

    def forward(self, x1: Tensor, x2: Tensor) -> Streams:  # type: ignore[override]
        """Return (y1, y2)."""
        y1 = x1 + _part_added("f", self.f, x2)
        return y1, x2 + _part_added("g", self.g, y1)

    def inverse(self, y1: Tensor, y2: Tensor) -> Streams:  # type: ignore[override]
        """Return (x1, x2)."""
        x2 = y2 - _part_added("g", self.g, y1)
        return y1 - _part_added("f", self.f, x2), x2

    def reverse_vjp(self, outputs: Streams, gradients: Streams) -> Reversed:
        """Reconstruct and differentiate with one evaluation of G and one of F."""
        y1, y2 = outputs
        dy1, dy2 = gradients
        g, through_g = _value_and_vjp(lambda x: _part_added("g", self.g, x), y1, dy2)
        x2 = y2 - g
        dx1 = through_g.add_(dy1)
        f, through_f = _value_and_vjp(lambda x: _part_added("f", self.f, x), x2, dx1)
        return Reversed((y1 - f, x2), (dx1, through_f.add_(dy2)))


# Functions and no methods: authors subclass the couplings, and every name there is theirs to take.


def _added(function: Callable[[Tensor], Tensor], x: Tensor, stream: Tensor) -> Tensor:
    """Return function(x) as it is added to `stream`."""
    value = function(x)
    if value.shape != stream.shape:  # A value that broadcasts can be added, and not differentiated.
        name = getattr(function, "__name__", "the function")
        shape, got = list(stream.shape), list(value.shape)
        raise ValueError(f"{name} must return a tensor of its input's shape, {shape} (got {got})")
    return on_grid(value, stream)


def _part_added(name: str, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with rng_scope(name):
        return _added(function, x, x)


def _value_and_vjp(function: Callable[[Tensor], Tensor], x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return function(x) and the gradient with respect to x; both own their memory."""
    own = leaf(x)
    with torch.enable_grad():
        value = function(own)
    (dx,) = backpropagate([value], [gradient.to(value.dtype)], [own])
    # A function that only views its input passes on the gradient itself. On the meta device addresses are all equal.
    shared = dx.untyped_storage() is gradient.untyped_storage()
    return value.detach(), dx.clone() if shared else dx
