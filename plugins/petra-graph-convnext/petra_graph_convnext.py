"""A reversible ConvNeXt block for petra-graph: its options, and the residual function F.

The coupling gives the inverse, the gradient with one evaluation of F, dropout, statistics and autocast.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import Attribute, frozen
from torch import Tensor, nn

from petra_graph.blocks import AdditiveCoupling, Shape
from petra_graph.plugins import AtLeast, LessThan, option


def _odd(_options: object, _attribute: Attribute[int], value: int) -> None:
    if value % 2 == 0:
        raise ValueError(f"must be odd, so that the convolution keeps the image's size (got {value})")


@frozen(kw_only=True)
class RevConvNextOptions:
    """The options of a block."""

    kernel: int = option("side of the depthwise convolution's kernel, pixels", default=7, validator=[AtLeast(1), _odd])
    expansion: int = option("hidden channels as a multiple of the stream's", default=4, validator=AtLeast(1))
    dropout: float = option("probability of dropping a hidden value", default=0.0, validator=[AtLeast(0), LessThan(1)])


class RevConvNext(AdditiveCoupling):
    """Additive coupling of ConvNeXt's residual function: depthwise and pointwise convolutions; two streams [n, c, h, w].

    Liu et al. 2022, https://arxiv.org/abs/2201.03545, figure 4.
    """

    Options = RevConvNextOptions
    draws = False  # the code of this class; nn.Dropout in it says of itself that it does

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
