"""RevNet's downsampling blocks: not invertible, since the shape changes, hence buffered."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from petra_graph.blocks import Buffered, Shape, Streams
from petra_graph.catalog.blocks.declared import BasicOptions, BottleneckOptions
from petra_graph.catalog.blocks.layers import conv_norm, conv_norm_relu


class DownBasic(Buffered):
    """Streams [n, c, h, w] to streams [n, channels, h / stride, w / stride].

    The first output is F(x) + BN(conv1x1(t)), the second the first half of F, as in the paper's networks.
    """

    Options = BasicOptions
    streams = 2

    def __init__(self, inputs: Sequence[Shape], options: BasicOptions) -> None:
        super().__init__(inputs, options)
        (x_width, *_), (t_width, *_) = inputs
        width = options.channels
        self.first = conv_norm_relu(x_width, width, kernel=3, stride=options.stride)
        self.second = conv_norm_relu(width, width, kernel=3)
        self.shortcut = conv_norm(t_width, width, kernel=1, stride=options.stride)

    def forward(self, x: Tensor, t: Tensor) -> Streams:  # type: ignore[override]
        """Return (F(x) + shortcut(t), first half of F)."""
        half = self.first(x)
        return self.second(half) + self.shortcut(t), half


class DownBottleneck(Buffered):
    """Streams [n, c, h, w] to streams [n, channels, h / stride, w / stride].

    The first output is F(x) + BN(conv1x1(t)), the second BN(conv1x1(x)), as in the paper's networks.
    """

    Options = BottleneckOptions
    streams = 2

    def __init__(self, inputs: Sequence[Shape], options: BottleneckOptions) -> None:
        super().__init__(inputs, options)
        (x_width, *_), (t_width, *_) = inputs
        width, hidden, stride = options.channels, options.hidden, options.stride
        self.reduce = conv_norm_relu(x_width, hidden, kernel=1)
        self.spatial = conv_norm_relu(hidden, hidden, kernel=3, stride=stride)
        self.expand = conv_norm_relu(hidden, width, kernel=1)
        self.shortcut_t = conv_norm(t_width, width, kernel=1, stride=stride)
        self.shortcut_x = conv_norm(x_width, width, kernel=1, stride=stride)

    def forward(self, x: Tensor, t: Tensor) -> Streams:  # type: ignore[override]
        """Return (F(x) + shortcut(t), shortcut(x))."""
        return self.expand(self.spatial(self.reduce(x))) + self.shortcut_t(t), self.shortcut_x(x)
