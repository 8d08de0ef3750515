"""Residual blocks of torchvision's networks as dual residual blocks (`petra_graph.blocks.couplings.residual_chain`): Dr2Net.

ResNet's blocks end in a ReLU, which alone has no inverse; in this form any block can be used as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from petra_graph import blocks
from petra_graph.blocks.couplings.residual_chain import coefficient
from petra_graph_torchvision.blocks import Piece
from petra_graph_torchvision.declared import DualResidualOptions


class DualResidualEntry(Piece, blocks.DualResidualEntry):
    """The first block of a chain."""

    Options = DualResidualOptions

    def __init__(self, inputs: Sequence[blocks.Shape], options: DualResidualOptions) -> None:
        super().__init__(inputs, options)
        self.alpha = coefficient(options.alpha)

    def residual(self, x: Tensor) -> Tensor:
        """Return B(x)."""
        return self.piece(x)[0]


class DualResidual(Piece, blocks.DualResidualStep):
    """A further block of a chain."""

    Options = DualResidualOptions

    def __init__(self, inputs: Sequence[blocks.Shape], options: DualResidualOptions) -> None:
        super().__init__(inputs, options)
        self.alpha, self.beta = coefficient(options.alpha), coefficient(options.beta)

    def residual(self, x: Tensor) -> Tensor:
        """Return B(x)."""
        return self.piece(x)[0]
