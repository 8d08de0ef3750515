"""The affine coupling: one stream is scaled and shifted by functions of the other.

    (x, t) -> (t * exp(s(x)) + u(x), x)
    (y, x) -> (x, (y - u(x)) * exp(-s(x)))

One evaluation of s and u gives their values, from which t follows, and their graph.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from petra_graph.blocks.block_kinds import Streams, Undo, Undone
from petra_graph.blocks.couplings.coupling import Coupling, evaluate


class AffineCoupling(Coupling):
    """The coupling of RealNVP in swap form: (x, t) -> (t * exp(s(x)) + u(x), x).

    Dinh et al. 2017, https://arxiv.org/abs/1605.08803, section 3. Write `scale_and_shift`, which maps a stream
    [n, *shape] to two tensors of the same shape, r and u; the log-scale is bounded smoothly, s = b tanh(r / b) with
    b = `log_scale_bound`.

    Rounding: the inverse multiplies an error of y by exp(-s), at most exp(b) a block, e at the default b = 1. Scales
    near 1 keep deep stacks exact: begin with r = 0, or lower the bound.
    """

    functions = ("scale_and_shift",)
    log_scale_bound: ClassVar[float] = 1.0

    @abstractmethod
    def scale_and_shift(self, x: Tensor, *context: Any, **_: Any) -> tuple[Tensor, Tensor]:
        """Return (r(x), u(x)), of x's shape: the log-scale before it is bounded, and the shift."""

    def forward(self, x: Tensor, t: Tensor, *context: Tensor) -> Streams:  # type: ignore[override]
        """Return (t * exp(s(x)) + u(x), x)."""
        scale, shift = _scale_and_shift(self, x, *context)
        return t * scale + shift, x, *context

    def inverse(self, y: Tensor, x: Tensor, *context: Tensor) -> Streams:  # type: ignore[override]
        """Return (x, (y - u(x)) * exp(-s(x)))."""
        scale, shift = _scale_and_shift(self, x, *context)
        return x, (y - shift) / scale, *context

    def reverse_steps(self) -> Sequence[Undo]:
        """Return the one step, with one evaluation."""
        return (partial(_undone, self),)


def _undone(block: AffineCoupling, outputs: Streams) -> Undone:
    y, x, *context = outputs
    evaluation = evaluate(partial(_scale_and_shift, block), x, *context)
    scale, shift = evaluation.values
    t = (y - shift) / scale

    def vjp(gradients: Streams) -> Streams:
        dy, *passed = gradients
        dx, *found = evaluation.vjp((dy * t, dy), passed)
        return dx, dy * scale, *found

    return Undone(lambda: (x, t, *context), vjp)


def _scale_and_shift(block: AffineCoupling, x: Tensor, *context: Tensor) -> tuple[Tensor, Tensor]:
    log_scale, shift = block.scale_and_shift(x, *context)
    for name, value in (("log-scale", log_scale), ("shift", shift)):
        if value.shape != x.shape:
            message = f"scale_and_shift must return tensors of its input's shape, {list(x.shape)}"
            raise ValueError(f"{message} (got a {name} of {list(value.shape)})")
    bound = block.log_scale_bound
    # The exponential of a bfloat16 value has two digits: streams keep theirs.
    return (torch.tanh(log_scale.to(x.dtype) / bound) * bound).exp(), shift
