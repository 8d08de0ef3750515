"""A reversible ConvNeXt block for petra-graph: Liu et al. 2022, https://arxiv.org/abs/2201.03545, figure 4."""

from collections.abc import Sequence

from torch import Tensor, nn

from petra_graph.plugins import AdditiveCoupling


class RevConvNext(AdditiveCoupling):
    """Additive coupling of ConvNeXt's residual function: depthwise and pointwise convolutions; two streams [n, c, h, w]."""

    draws = False  # the code of this class; nn.Dropout in it says of itself that it does

    def __init__(
        self, inputs: Sequence[tuple[int, ...]], *, kernel: int = 7, expansion: int = 4, dropout: float = 0.0
    ) -> None:
        super().__init__(inputs)
        width = inputs[0][0]
        if kernel < 1 or kernel % 2 == 0 or expansion < 1:
            raise ValueError(f"kernel must be odd, and expansion at least 1 (got {kernel} and {expansion})")
        self.spatial = nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=width)
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, expansion * width)
        self.gelu = nn.GELU()
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.contract = nn.Linear(expansion * width, width)

    def residual(self, x_nchw: Tensor) -> Tensor:
        """Return F(x)."""
        x_nhwc = self.spatial(x_nchw).permute(0, 2, 3, 1)
        hidden_nhwc = self.dropout(self.gelu(self.expand(self.norm(x_nhwc))))
        value: Tensor = self.contract(hidden_nhwc).permute(0, 3, 1, 2)
        return value
