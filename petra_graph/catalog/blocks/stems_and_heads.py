"""Stems, sums, heads: blocks where branches of a network begin, meet or end."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod

import torch
from torch import Tensor, nn

from petra_graph.blocks import Buffered, Head, Shape, Streams
from petra_graph.catalog.blocks.declared_blocks import AddOptions, ConvStemOptions, LinearStemOptions, PoolLinearOptions


class ConvStem(Buffered):
    """Images [n, c, h, w] to streams [n, channels, h', w'].

    All streams come from one convolution and one normalisation, and are split afterwards.
    """

    Options = ConvStemOptions
    draws = False
    streams = 1

    def __init__(self, inputs: Sequence[Shape], options: ConvStemOptions) -> None:
        super().__init__(inputs, options)
        width = options.streams * options.channels
        self.conv = nn.Conv2d(inputs[0][0], width, options.kernel, stride=options.stride, padding=options.kernel // 2)
        self.pool = nn.MaxPool2d(options.pool) if options.pool > 1 else nn.Identity()
        self.norm = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, image: Tensor) -> Streams:  # type: ignore[override]
        """Return the streams."""
        joined: Tensor = self.relu(self.norm(self.pool(self.conv(image))))
        return joined.chunk(self.options.streams, dim=1)


class LinearStem(Buffered):
    """Samples [n, *shape] to streams [n, features]."""

    Options = LinearStemOptions
    draws = False
    streams = 1

    def __init__(self, inputs: Sequence[Shape], options: LinearStemOptions) -> None:
        super().__init__(inputs, options)
        self.linear = nn.Linear(prod(inputs[0]), options.streams * options.features)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, sample: Tensor) -> Streams:  # type: ignore[override]
        """Return the streams."""
        joined: Tensor = self.relu(self.linear(sample.flatten(1)))
        return joined.chunk(self.options.streams, dim=1)


class Add(Buffered):
    """The sum of the inputs, stream by stream: with two streams each, (a, b) and (c, d) become (a + c, b + d)."""

    Options = AddOptions
    draws = False

    def __init__(self, inputs: Sequence[Shape], options: AddOptions) -> None:
        super().__init__(inputs, options)
        if len(inputs) % options.streams:
            message = f"its inputs carry {len(inputs)} streams, which is not a multiple of streams = {options.streams}"
            raise ValueError(message)

    def forward(self, *streams: Tensor) -> Streams:
        """Return the sums, added in the order of the inputs."""
        count = self.options.streams
        return tuple(reduce(torch.add, streams[index::count]) for index in range(count))


class PoolLinear(Head):
    """Streams [n, c, ...] to one output [n, outputs]."""

    Options = PoolLinearOptions
    draws = False

    def __init__(self, inputs: Sequence[Shape], options: PoolLinearOptions) -> None:
        super().__init__(inputs, options)
        if bare := [index for index, shape in enumerate(inputs) if not shape]:
            raise ValueError(f"input stream {bare[0]} has no features: one number a sample, of shape [n]")
        self.linear = nn.Linear(sum(shape[0] for shape in inputs), options.outputs)

    def forward(self, *streams: Tensor) -> Streams:
        """Return the output."""
        joined = torch.cat(streams, dim=1)
        space = tuple(range(2, joined.dim()))
        return (self.linear(joined.mean(space) if space else joined),)
