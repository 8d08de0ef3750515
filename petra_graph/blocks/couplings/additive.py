"""Additive couplings: reversible with any functions inside.

    swap form                       two-function form
    (x, t) -> (t + F(x), x)         y1 = x1 + F(x2);  y2 = x2 + G(y1)
    (y, s) -> (s, y - F(s))         x2 = y2 - G(y1);  x1 = y1 - F(x2)

The residual function's value is needed to reconstruct, and its graph to differentiate: one evaluation in the backward
gives both (PETRA section 4.2; Gomez et al. 2017, https://arxiv.org/abs/1707.04585, algorithm 1). Rounding does not grow
by the coupling itself: an error of t comes back as the same error of t.

The paper's figure 2 has the swap form: (b) is `forward`, (c) is `inverse`. `undo_sum` is equation (4).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from petra_graph.blocks.block_kinds import Streams, Undo, Undone
from petra_graph.blocks.couplings.coupling import Coupling, evaluate, residual_value
from petra_graph.blocks.randomness import rng_scope


class AdditiveCoupling(Coupling):
    """The swap form, which RevNets use: write `residual`, and inherit the rest.

    `residual` maps a stream [n, *shape] to one of the same shape.
    """

    @abstractmethod
    def residual(self, x: Tensor, *context: Any, **_: Any) -> Tensor:
        """Return F(x), of x's shape."""

    def forward(self, x: Tensor, t: Tensor, *context: Tensor) -> Streams:  # type: ignore[override]
        """Return (t + F(x), x)."""
        return t + residual_value(self.residual, x, *context), x, *context

    def inverse(self, y: Tensor, s: Tensor, *context: Tensor) -> Streams:  # type: ignore[override]
        """Return (s, y - F(s))."""
        return s, y - residual_value(self.residual, s, *context), *context

    def reverse_steps(self) -> Sequence[Undo]:
        """Return the one step of F."""
        return (partial(undo_sum, partial(residual_value, self.residual), 0, 1),)


def undo_sum(
    function: Callable[..., Tensor], at: int, to: int, outputs: Streams, b: float | Tensor | None = None
) -> Undone:
    """Undo y = b t + F(others) with one evaluation of F, where y is stream `at` after the step, and t stream `to` before it.

        t = (y - F(others)) / b                                        the input
        dt = b dy                                                      its gradient
        d others = those after the step + (dF/d others)^T dy           and that of all that F reads

    Args:
        function: F of all other streams, in their order; autograd adds to the gradients of its parameters.
        b: None for 1.
    """
    y, others = outputs[at], (*outputs[:at], *outputs[at + 1 :])
    evaluation = evaluate(function, *others)

    def inputs() -> Streams:
        t = y - evaluation.outputs[0].detach()
        return *others[:to], t if b is None else t / b, *others[to:]

    def vjp(gradients: Streams) -> Streams:
        dy = gradients[at]
        found = evaluation.vjp((dy,), (*gradients[:at], *gradients[at + 1 :]))
        return *found[:to], dy if b is None else dy * b, *found[to:]

    return Undone(inputs, vjp)


class TwoFunctionCoupling(Coupling):
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
        y1 = x1 + _part("f", self.f, x2, *context)
        return y1, x2 + _part("g", self.g, y1, *context), *context

    def inverse(self, y1: Tensor, y2: Tensor, *context: Tensor) -> Streams:  # type: ignore[override]
        """Return (x1, x2)."""
        x2 = y2 - _part("g", self.g, y1, *context)
        return y1 - _part("f", self.f, x2, *context), x2, *context

    def reverse_steps(self) -> Sequence[Undo]:
        """Return the steps of G and of F."""
        g, f = partial(_part, "g", self.g), partial(_part, "f", self.f)
        return partial(undo_sum, g, 1, 1), partial(undo_sum, f, 0, 0)


# A function and no method: authors subclass the couplings, and every name there is theirs to take.


def _part(name: str, function: Callable[..., Tensor], x: Tensor, *context: Tensor) -> Tensor:
    with rng_scope(name):
        return residual_value(function, x, *context)
