"""ResNet's blocks (He et al. 2016), with biased convolutions as in the paper's baselines."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from petra_graph.blocks import Buffered, Shape, Streams
from petra_graph.catalog.blocks.declared import BasicOptions, BottleneckOptions
from petra_graph.catalog.blocks.layers import conv_norm, conv_norm_relu


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    same = inputs == outputs and stride == 1
    return nn.Identity() if same else conv_norm(inputs, outputs, kernel=1, stride=stride)


class ResBasic(Buffered):
    """One stream [n, c, h, w] to one [n, channels, h / stride, w / stride]."""

    Options = BasicOptions
    streams = 1

    def __init__(self, inputs: Sequence[Shape], options: BasicOptions) -> None:
        super().__init__(inputs, options)
        width = options.channels
        self.first = conv_norm_relu(inputs[0][0], width, kernel=3, stride=options.stride)
        self.second = conv_norm(width, width, kernel=3)
        self.shortcut = _shortcut(inputs[0][0], width, options.stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Streams:  # type: ignore[override]
        """Return the output stream."""
        return (self.relu(self.second(self.first(x)) + self.shortcut(x)),)


class ResBottleneck(Buffered):
    """One stream [n, c, h, w] to one [n, channels, h / stride, w / stride]."""

    Options = BottleneckOptions
    streams = 1

    def __init__(self, inputs: Sequence[Shape], options: BottleneckOptions) -> None:
        super().__init__(inputs, options)
        width, hidden = options.channels, options.hidden
        self.reduce = conv_norm_relu(inputs[0][0], hidden, kernel=1)
        self.spatial = conv_norm_relu(hidden, hidden, kernel=3, stride=options.stride)
        self.expand = conv_norm(hidden, width, kernel=1)
        self.shortcut = _shortcut(inputs[0][0], width, options.stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Streams:  # type: ignore[override]
        """Return the output stream."""
        return (self.relu(self.expand(self.spatial(self.reduce(x))) + self.shortcut(x)),)
