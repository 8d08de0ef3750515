"""A coupling whose residual function is one convolution times another: a gate."""

from petra_graph.blocks import AdditiveCoupling
from torch import nn


class GatedBlock(AdditiveCoupling):
    """Two streams [n, c, h, w] to two of the same shape."""

    def __init__(self, inputs):
        super().__init__(inputs)
        channels = inputs[0][0]  # inputs are the streams' shapes, without the batch
        self.norm = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, 2 * channels, 3, padding=1)

    def residual(self, x):
        value, gate = self.conv(self.norm(x)).chunk(2, dim=1)
        return value * gate.sigmoid()
