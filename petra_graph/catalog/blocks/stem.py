"""First nodes: from a sample to the network's streams."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import Tensor, nn

from petra_graph.blocks import Buffered, Shape, Streams
from petra_graph.catalog.blocks.declared import ConvStemOptions, LinearStemOptions


class ConvStem(Buffered):
    """Images [n, c, h, w] to streams [n, channels, h', w'].

    All streams come from one convolution and one normalisation, and are split afterwards.
    """

    Options = ConvStemOptions
    streams = 1

    def __init__(self, inputs: Sequence[Shape], options: ConvStemOptions) -> None:
        super().__init__(inputs, options)
        width = options.streams * options.channels
        self.conv = nn.Conv2d(inputs[0][0], width, options.kernel, stride=options.stride, padding=options.kernel // 2)
        self.pool = nn.MaxPool2d(options.pool) if options.pool > 1 else nn.Identity()
        self.norm = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.outputs = options.streams

    def forward(self, image: Tensor) -> Streams:  # type: ignore[override]
        """Return the streams."""
        joined: Tensor = self.relu(self.norm(self.pool(self.conv(image))))
        return joined.chunk(self.outputs, dim=1)


class LinearStem(Buffered):
    """Samples [n, *shape] to streams [n, features]."""

    Options = LinearStemOptions
    streams = 1

    def __init__(self, inputs: Sequence[Shape], options: LinearStemOptions) -> None:
        super().__init__(inputs, options)
        self.linear = nn.Linear(prod(inputs[0]), options.streams * options.features)
        self.relu = nn.ReLU(inplace=True)
        self.outputs = options.streams

    def forward(self, sample: Tensor) -> Streams:  # type: ignore[override]
        """Return the streams."""
        joined: Tensor = self.relu(self.linear(sample.flatten(1)))
        return joined.chunk(self.outputs, dim=1)
