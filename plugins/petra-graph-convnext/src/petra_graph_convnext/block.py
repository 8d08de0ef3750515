"""The residual function F; the coupling gives inverse, gradient, dropout, statistics and autocast."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from petra_graph.blocks import AdditiveCoupling, Shape
from petra_graph_convnext.declared import RevConvNextOptions


class RevConvNext(AdditiveCoupling):
    """Two streams [n, c, h, w]."""

    Options = RevConvNextOptions
    draws = False

    def __init__(self, inputs: Sequence[Shape], options: RevConvNextOptions) -> None:
        super().__init__(inputs, options)
        width = inputs[0][0]
        hidden = options.expansion * width
        self.spatial = nn.Conv2d(width, width, options.kernel, padding=options.kernel // 2, groups=width)
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, hidden)
        self.gelu = nn.GELU()
        self.dropout = nn.Dropout(options.dropout) if options.dropout else nn.Identity()
        self.contract = nn.Linear(hidden, width)

    def residual(self, x_nchw: Tensor) -> Tensor:
        """Return F(x)."""
        x_nhwc = self.spatial(x_nchw).permute(0, 2, 3, 1)
        hidden_nhwc = self.dropout(self.gelu(self.expand(self.norm(x_nhwc))))
        value: Tensor = self.contract(hidden_nhwc).permute(0, 3, 1, 2)
        return value
