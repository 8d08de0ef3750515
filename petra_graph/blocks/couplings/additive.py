"""Additive couplings: reversible with any functions inside.

    swap form                       two-function form
    (x, t) -> (t + F(x), x)         y1 = x1 + F(x2);  y2 = x2 + G(y1)
    (y, s) -> (s, y - F(s))         x2 = y2 - G(y1);  x1 = y1 - F(x2)

The residual function's value is needed to reconstruct, and its graph to differentiate: one evaluation in the backward
gives both (PETRA section 4.2; Gomez et al. 2017, https://arxiv.org/abs/1707.04585, algorithm 1). Rounding does not grow
by the coupling itself: an error of t comes back as the same error of t.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from petra_graph.blocks.block_kinds import Streams, Undo, Undone
from petra_graph.blocks.couplings.coupling import Coupling
from petra_graph.blocks.couplings.evaluated_function import added, evaluate, sums
from petra_graph.blocks.randomness import rng_scope


class Additive(Coupling):
    """A reversible block that only adds to its streams, so that it is exact on a grid."""


class AdditiveCoupling(Additive):
    """The swap form, which RevNets use: write `residual`, and inherit the rest.

    `residual` maps a stream [n, *shape] to one of the same shape.
    """

    @abstractmethod
    def residual(self, x: Tensor, *context: Any, **_: Any) -> Tensor:
        """Return F(x), of x's shape."""

    def forward(self, x: Tensor, t: Tensor, *context: Tensor) -> Streams:  # type: ignore[override]
        """Return (t + F(x), x)."""
        return t + added(self.residual, x, *context), x, *context

    def inverse(self, y: Tensor, s: Tensor, *context: Tensor) -> Streams:  # type: ignore[override]
        """Return (s, y - F(s))."""
        return s, y - added(self.residual, s, *context), *context

    def reverse_steps(self) -> Sequence[Undo]:
        """Return the one step of F."""
        return (partial(_residual_undone, self),)


def _residual_undone(block: AdditiveCoupling, outputs: Streams) -> Undone:
    y, s, *context = outputs
    evaluation = evaluate(partial(added, block.residual), s, *context)

    def vjp(gradients: Streams) -> Streams:
        dy, ds, *passed = gradients
        dx, *found = evaluation.vjp(dy)
        return dx.add_(ds), dy, *(sums(found, passed) if passed else ())

    return Undone(lambda: (s, y - evaluation.outputs[0].detach(), *context), vjp)


class TwoFunctionCoupling(Additive):
    """The form of reversible transformers: write `f` and `g`, and inherit the rest."""

    functions = ("f", "g")

    @abstractmethod
    def f(self, x: Tensor, *context: Any, **_: Any) -> Tensor:
        """Return F(x), of x's shape."""

    @abstractmethod
    def g(self, x: Tensor, *context: Any, **_: Any) -> Tensor:
        """Return G(x), of x's shape."""

    def forward(self, x1: Tensor, x2: Tensor, *context: Tensor) -> Streams:  # type: ignore[override]
        """Return (y1, y2)."""
        y1 = x1 + _part_added("f", self.f, x2, *context)
        return y1, x2 + _part_added("g", self.g, y1, *context), *context

    def inverse(self, y1: Tensor, y2: Tensor, *context: Tensor) -> Streams:  # type: ignore[override]
        """Return (x1, x2)."""
        x2 = y2 - _part_added("g", self.g, y1, *context)
        return y1 - _part_added("f", self.f, x2, *context), x2, *context

    def reverse_steps(self) -> Sequence[Undo]:
        """Return the steps of G and of F."""
        return partial(_g_undone, self), partial(_f_undone, self)


# A function and no method: authors subclass the couplings, and every name there is theirs to take.


def _part_added(name: str, function: Callable[..., Tensor], x: Tensor, *context: Tensor) -> Tensor:
    with rng_scope(name):
        return added(function, x, *context)


def _g_undone(block: TwoFunctionCoupling, outputs: Streams) -> Undone:
    y1, y2, *context = outputs
    evaluation = evaluate(partial(_part_added, "g", block.g), y1, *context)

    def vjp(gradients: Streams) -> Streams:
        dy1, dy2, *passed = gradients
        through_g, *found = evaluation.vjp(dy2)
        return through_g.add_(dy1), dy2, *sums(found, passed)

    return Undone(lambda: (y1, y2 - evaluation.outputs[0].detach(), *context), vjp)


def _f_undone(block: TwoFunctionCoupling, outputs: Streams) -> Undone:
    y1, x2, *context = outputs
    evaluation = evaluate(partial(_part_added, "f", block.f), x2, *context)

    def vjp(gradients: Streams) -> Streams:
        dx1, dy2, *passed = gradients
        through_f, *found = evaluation.vjp(dx1)
        return dx1, through_f.add_(dy2), *sums(found, passed)

    return Undone(lambda: (y1 - evaluation.outputs[0].detach(), x2, *context), vjp)
