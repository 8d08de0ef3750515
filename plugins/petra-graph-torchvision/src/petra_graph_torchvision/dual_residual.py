"""Residual blocks with a second residual connection, which makes them reversible: Dr2Net.

    pretrained        x_{n+1} = B(x_n) = F(x_n) + x_n
    dual residual     x_{n+1} = F(x_n) + a x_n + b x_{n-1} = B(x_n) + (a - 1) x_n + b x_{n-1}
    inverse           x_{n-1} = (x_{n+1} - B(x_n) - (a - 1) x_n) / b

Zhao et al. 2024, "Dr2Net: Dynamic Reversible Dual-Residual Networks for Memory-Efficient Finetuning",
https://arxiv.org/abs/2401.04105, equation 1, where the second stream is y_n = b x_{n-1}; here it is x_{n-1} itself, which is
handed on without rounding. With a = 1 and b near 0 the network computes what the pretrained one does; then the inverse divides
by a small number, so that errors grow by 1 / b a block.

In this form any block B of the pretrained network can be used as it is, whatever it does after its addition: ResNet's blocks
end in a ReLU, which alone has no inverse.

A chain begins with y_0 = 0: its first block has one stream and no second connection, and its input is its output's second
stream, without an error whatever b is.

Decision: a and b are parameters that ask for no gradient. A schedule may then move them (`schedule`), checkpoints and weights
hold them, and methods that keep the parameters of a forward keep them too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from petra_graph.blocks import Coefficients, Reversible, Shape, Streams, TwoStepCoupling
from petra_graph_torchvision.blocks import Piece
from petra_graph_torchvision.declared import DualResidualOptions


class DualResidualEntry(Piece, Reversible):
    """The first block of a chain: x -> (B(x) + (a - 1) x, x)."""

    Options = DualResidualOptions
    streams = 1

    def __init__(self, inputs: Sequence[Shape], options: DualResidualOptions) -> None:
        super().__init__(inputs, options)
        self.alpha = _frozen(options.alpha)

    def forward(self, x: Tensor) -> Streams:  # type: ignore[override]
        """Return the block's value, and its input."""
        (value,) = self.piece(x)
        return value + (self.alpha - 1.0) * x, x

    def inverse(self, _: Tensor, x: Tensor) -> Streams:  # type: ignore[override]
        """Return the input."""
        return (x,)


class DualResidual(Piece, TwoStepCoupling):
    """A further block of a chain: (x, previous) -> (B(x) + (a - 1) x + b previous, x)."""

    Options = DualResidualOptions
    streams = 2

    def __init__(self, inputs: Sequence[Shape], options: DualResidualOptions) -> None:
        super().__init__(inputs, options)
        self.alpha, self.beta = _frozen(options.alpha), _frozen(options.beta)

    def coefficients(self, x: Tensor) -> Coefficients:
        """Return a - 1, b, 1."""
        return Coefficients(self.alpha - 1.0, self.beta, 1.0)

    def residual(self, x: Tensor) -> Tensor:
        """Return B(x)."""
        return self.piece(x)[0]


def _frozen(value: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(value), requires_grad=False)
