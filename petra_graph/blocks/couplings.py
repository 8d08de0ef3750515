"""Couplings: some streams change by functions of others, and the input follows from the output.

    coupling          forward                                                   inverse
    Additive          (x, t) -> (t + F(x), x)                                   (y, s) -> (s, y - F(s))
    TwoFunction       y1 = x1 + F(x2);  y2 = x2 + G(y1)                         x2 = y2 - G(y1);  x1 = y1 - F(x2)
    Affine            (x, t) -> (t exp(s(x)) + u(x), x)                         (y, x) -> (x, (y - u(x)) exp(-s(x)))
    Momentum          v' = g v + (1 - g) F(x);  y = x + v'                      x = y - v';  v = (v' - (1 - g) F(x)) / g

The author writes the functions. In a backward each is evaluated once, with a graph: its value reconstructs, and its graph differentiates
(PETRA section 4.2; Gomez et al. 2017, https://arxiv.org/abs/1707.04585, algorithm 1). The paper's figure 2 has the swap form: (b) is the
forward of `AdditiveCoupling`, (c) its inverse; `undo_sum` is equation (4).

Streams beyond those that a coupling couples are the *context* of its functions: masks, positions, the output of an encoder. A block that
reads them sets `streams` to the number of all, and its functions take them as further arguments. They pass through unchanged;
floating-point context gets its gradient, summed over all functions and consumers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from petra_graph.blocks.block_kinds import Reversed, Reversible, Streams
from petra_graph.blocks.differentiation import backpropagate, leaf
from petra_graph.blocks.randomness import rng_scope

_NOTHING = nullcontext()

# What an author does not call is a function here and no method: authors subclass the couplings, and every name there is theirs to take.


class Coupling(Reversible):
    """A reversible block around functions that its author writes."""

    streams: ClassVar[int | None] = 2
    functions: ClassVar[tuple[str, ...]] = ("residual",)
    """Names of the methods that an author writes."""


class ResidualCoupling(Coupling):
    """A coupling of one residual function F."""

    @abstractmethod
    def residual(self, x: Tensor, *context: Any, **_: Any) -> Tensor:
        """Return F(x), of x's shape: [n, *shape] to [n, *shape]."""


class AdditiveCoupling(ResidualCoupling):
    """The swap form, which RevNets use: (x, t) -> (t + F(x), x). Write `residual`, and inherit the rest."""

    def forward(self, x: Tensor, t: Tensor, *context: Tensor) -> Streams:  # type: ignore[override]
        return t + residual_value(self.residual, x, *context), x, *context

    def inverse(self, y: Tensor, s: Tensor, *context: Tensor) -> Streams:  # type: ignore[override]
        return s, y - residual_value(self.residual, s, *context), *context

    def reverse_vjp(self, outputs: Streams, gradients: Streams) -> Reversed:
        return undo_sum(partial(residual_value, self.residual), outputs, gradients, at=0, to=1)


class TwoFunctionCoupling(Coupling):
    """The form of reversible transformers: y1 = x1 + F(x2), y2 = x2 + G(y1). Write `f` and `g`, and inherit the rest."""

    functions = ("f", "g")

    @abstractmethod
    def f(self, x: Tensor, *context: Any, **_: Any) -> Tensor:
        """Return F(x), of x's shape."""

    @abstractmethod
    def g(self, x: Tensor, *context: Any, **_: Any) -> Tensor:
        """Return G(x), of x's shape."""

    def forward(self, x1: Tensor, x2: Tensor, *context: Tensor) -> Streams:  # type: ignore[override]
        y1 = x1 + _part("f", self.f, x2, *context)
        return y1, x2 + _part("g", self.g, y1, *context), *context

    def inverse(self, y1: Tensor, y2: Tensor, *context: Tensor) -> Streams:  # type: ignore[override]
        x2 = y2 - _part("g", self.g, y1, *context)
        return y1 - _part("f", self.f, x2, *context), x2, *context

    def reverse_vjp(self, outputs: Streams, gradients: Streams) -> Reversed:
        outputs, gradients = undo_sum(partial(_part, "g", self.g), outputs, gradients, at=1, to=1)
        return undo_sum(partial(_part, "f", self.f), outputs, gradients, at=0, to=0)


def _part(name: str, function: Callable[..., Tensor], x: Tensor, *context: Tensor) -> Tensor:
    with rng_scope(name):
        return residual_value(function, x, *context)


class AffineCoupling(Coupling):
    """The coupling of RealNVP in swap form: (x, t) -> (t * exp(s(x)) + u(x), x).

    Dinh et al. 2017, https://arxiv.org/abs/1605.08803, section 3. Write `scale_and_shift`, which maps a stream
    [n, *shape] to two tensors of the same shape, r and u; the log-scale is bounded smoothly, s = b tanh(r / b) with
    b = `log_scale_bound`. Scales near 1 keep deep stacks exact: begin with r = 0, or lower the bound.
    """

    functions = ("scale_and_shift",)
    log_scale_bound: ClassVar[float] = 1.0

    @abstractmethod
    def scale_and_shift(self, x: Tensor, *context: Any, **_: Any) -> tuple[Tensor, Tensor]:
        """Return (r(x), u(x)), of x's shape: the log-scale before it is bounded, and the shift."""

    def forward(self, x: Tensor, t: Tensor, *context: Tensor) -> Streams:  # type: ignore[override]
        scale, shift = _scale_and_shift(self, x, *context)
        return t * scale + shift, x, *context

    def inverse(self, y: Tensor, x: Tensor, *context: Tensor) -> Streams:  # type: ignore[override]
        scale, shift = _scale_and_shift(self, x, *context)
        return x, (y - shift) / scale, *context

    def reverse_vjp(self, outputs: Streams, gradients: Streams) -> Reversed:
        y, x, *context = outputs
        dy, *passed = gradients
        leaves, values = evaluated(partial(_scale_and_shift, self), x, *context)
        scale, shift = (value.detach() for value in values)
        t = (y - shift) / scale
        dx, *found = differentiated(values, (dy * t, dy), leaves, passed)
        return Reversed((x, t, *context), (dx, dy * scale, *found))


def _scale_and_shift(block: AffineCoupling, x: Tensor, *context: Tensor) -> tuple[Tensor, Tensor]:
    function = block.scale_and_shift
    log_scale, shift = (_of_shape(x, value, function) for value in function(x, *context))
    bound = block.log_scale_bound
    # The exponential of a bfloat16 value has two digits: streams keep theirs.
    return (torch.tanh(log_scale.to(x.dtype) / bound) * bound).exp(), shift


class MomentumCoupling(ResidualCoupling):
    """Momentum residual networks: the state moves by a velocity, which the residual function pulls.

    Sander et al. 2021, https://arxiv.org/abs/2102.07870. The streams are (x, v); write `residual`. g is `momentum`, in (0, 1]. A residual
    network becomes one of these with its parameters unchanged, and behaves like it as g goes to 0; the velocity begins with zero. The inverse
    divides by g: over 100 blocks of g = 0.9, float32 keeps two digits of seven. Take g near 1 in deep stacks, or anchor.
    """

    momentum: float = 0.9

    def forward(self, x: Tensor, v: Tensor, *context: Tensor) -> Streams:  # type: ignore[override]
        velocity = v * self.momentum + _pull(self, x, *context)
        return x + velocity, velocity, *context

    def inverse(self, y: Tensor, velocity: Tensor, *context: Tensor) -> Streams:  # type: ignore[override]
        x = y - velocity
        return x, (velocity - _pull(self, x, *context)) / self.momentum, *context

    def reverse_vjp(self, outputs: Streams, gradients: Streams) -> Reversed:
        y, velocity, *context = outputs
        dy, d_velocity, *passed = gradients
        gradients = dy, dy + d_velocity, *passed
        outputs = y - velocity, velocity, *context
        return undo_sum(partial(_pull, self), outputs, gradients, at=1, to=1, b=self.momentum)


def _pull(block: MomentumCoupling, x: Tensor, *context: Tensor) -> Tensor:
    """Return (1 - g) F(x), in x's type."""
    return residual_value(block.residual, x, *context).to(x.dtype) * (1.0 - block.momentum)


# --- the backward of all of them --------------------------------------------------------------------------------------


def undo_sum(
    function: Callable[..., Tensor], outputs: Streams, gradients: Streams, *, at: int, to: int, b: float | Tensor = 1.0
) -> Reversed:
    """Undo y = b t + F(others) with one evaluation of F, where y is stream `at` after the step, and t stream `to` before it.

        t = (y - F(others)) / b                                        the input
        dt = b dy                                                      its gradient
        d others = those after the step + (dF/d others)^T dy           and that of all that F reads

    Args:
        function: F of all other streams, in their order; autograd adds to the gradients of its parameters.
    """
    y, others = outputs[at], (*outputs[:at], *outputs[at + 1 :])
    dy, passed = gradients[at], (*gradients[:at], *gradients[at + 1 :])
    leaves, values = evaluated(function, *others)
    # The gradient first: what its graph has saved is free before the stream is made.
    found = differentiated(values, (dy,), leaves, passed)
    t = y - values[0].detach()
    if isinstance(b, Tensor) or b != 1.0:
        t, dy = t / b, dy * b
    return Reversed((*others[:to], t, *others[to:]), (*found[:to], dy, *found[to:]))


def evaluated(function: Callable[..., Tensor | Streams], *inputs: Tensor) -> tuple[Streams, Streams]:
    """Evaluate a function with a graph; return the leaves at which it was, and its values."""
    leaves = tuple(map(leaf, inputs))
    # In a stage's backward it is enabled, and the context would cost more than a small layer.
    with _NOTHING if torch.is_grad_enabled() else torch.enable_grad():
        outputs = function(*leaves)
    return leaves, (outputs,) if isinstance(outputs, Tensor) else outputs


def differentiated(values: Streams, gradients: Sequence[Tensor], leaves: Streams, passed: Sequence[Tensor]) -> Streams:
    """Return the gradient with respect to each leaf.

    Args:
        values: of a function of the leaves, with their graph.
        gradients: of each value, of the streams' type.
        passed: for each leaf, the gradient of a stream that is the same before and after the step, to which this one is added; a stream of
            integers has none of its own, and keeps what was passed.
    """
    typed = gradients
    if values[0].dtype != gradients[0].dtype or len(gradients) > 1:
        typed = tuple(gradient.to(value.dtype) for gradient, value in zip(gradients, values, strict=True))
    found = zip(backpropagate(values, typed, leaves), passed, strict=True)
    # Sums in memory of their own: a function that only views its input passes on the gradient itself.
    sums = tuple([own + other if own.is_floating_point() else other for own, other in found])
    for one in leaves:
        one.grad = None  # its memory is free before the stream is made
    return sums


def residual_value(function: Callable[..., Tensor], x: Tensor, *context: Tensor) -> Tensor:
    """Return function(x, *context); WrongResult: it has not x's shape. What broadcasts could be added, and not differentiated."""
    return _of_shape(x, function(x, *context), function)


def _of_shape(x: Tensor, value: Any, function: Callable[..., Any]) -> Tensor:
    if isinstance(value, Tensor) and value.shape == x.shape:
        return value
    got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
    name = getattr(function, "__name__", "the function")
    raise WrongResult(f"{name} must return a tensor of its input's shape, {list(x.shape)} (got {got})")


class WrongResult(TypeError, ValueError):
    """What the function of a coupling returned cannot be added to its stream."""
