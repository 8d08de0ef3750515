import torch
from petra_graph.blocks import AdditiveCoupling
from torch import nn


class RevTanh(AdditiveCoupling):
    """Two streams [n, c, h, w] to two of the same shape."""

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        channels = inputs[0][0]
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.activation = getattr(torch, options.activation)

    def residual(self, x):
        return self.activation(self.conv(x))
