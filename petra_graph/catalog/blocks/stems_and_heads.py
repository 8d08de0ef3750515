"""Stems, sums, heads: blocks where branches of a network begin, meet or end."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from petra_graph.blocks import Buffered, Head, Shape, Streams
from petra_graph.plugins import AtLeast, GreaterThan

Split = Annotated[Literal[1, 2], "output streams: 2 for reversible networks, 1 for others"]


class ConvStem(Buffered):
    """Convolution, optional max-pooling, batch normalisation and ReLU, split into streams.

    Images [n, c, h, w] to streams [n, channels, h', w']. All streams come from one convolution and one normalisation.
    """

    draws = False
    streams = 1

    def __init__(
        self,
        inputs: Sequence[Shape],
        *,
        channels: Annotated[int, "channels of each output stream", AtLeast(1)],
        kernel: Annotated[int, "side of the square kernel, pixels", AtLeast(1)] = 3,
        stride: Annotated[int, "stride of the convolution, pixels", AtLeast(1)] = 1,
        pool: Annotated[int, "side and stride of a max-pooling after the convolution; 1 for none", AtLeast(1)] = 1,
        streams: Split = 2,
    ) -> None:
        super().__init__(inputs)
        self.conv = nn.Conv2d(inputs[0][0], streams * channels, kernel, stride=stride, padding=kernel // 2)
        self.pool = nn.MaxPool2d(pool) if pool > 1 else nn.Identity()
        self.norm = nn.BatchNorm2d(streams * channels)
        self.relu = nn.ReLU(inplace=True)
        self.parts = streams

    def forward(self, image: Tensor) -> Streams:  # type: ignore[override]
        """Return the streams."""
        joined: Tensor = self.relu(self.norm(self.pool(self.conv(image))))
        return joined.chunk(self.parts, dim=1)


class LinearStem(Buffered):
    """Flatten, linear layer and ReLU, split into streams: samples [n, *shape] to streams [n, features]."""

    draws = False
    streams = 1

    def __init__(
        self,
        inputs: Sequence[Shape],
        *,
        features: Annotated[int, "features of each output stream", AtLeast(1)],
        streams: Split = 2,
    ) -> None:
        super().__init__(inputs)
        self.linear = nn.Linear(prod(inputs[0]), streams * features)
        self.relu = nn.ReLU(inplace=True)
        self.parts = streams

    def forward(self, sample: Tensor) -> Streams:  # type: ignore[override]
        """Return the streams."""
        joined: Tensor = self.relu(self.linear(sample.flatten(1)))
        return joined.chunk(self.parts, dim=1)


class Add(Buffered):
    """Sum of its inputs, stream by stream: where skip edges and branches meet.

    With two streams each, (a, b) and (c, d) become (a + c, b + d).
    """

    draws = False

    def __init__(
        self,
        inputs: Sequence[Shape],
        *,
        streams: Annotated[int, "streams of each input and of the output", AtLeast(1)] = 2,
    ) -> None:
        super().__init__(inputs)
        self.parts = streams
        if len(inputs) % streams:
            raise ValueError(f"its inputs carry {len(inputs)} streams, which is not a multiple of streams = {streams}")

    def forward(self, *streams: Tensor) -> Streams:
        """Return the sums, added in the order of the inputs."""
        return tuple(reduce(torch.add, streams[index :: self.parts]) for index in range(self.parts))


class PoolLinear(Head):
    """Head of a classifier: streams concatenated, averaged over space, one linear layer.

    Streams [n, c, ...] to one output [n, outputs].
    """

    draws = False

    def __init__(
        self,
        inputs: Sequence[Shape],
        *,
        outputs: Annotated[int, "outputs of the linear layer: the number of classes", GreaterThan(0)],
    ) -> None:
        super().__init__(inputs)
        if bare := [index for index, shape in enumerate(inputs) if not shape]:
            raise ValueError(f"input stream {bare[0]} has no features: one number a sample, of shape [n]")
        self.linear = nn.Linear(sum(shape[0] for shape in inputs), outputs)

    def forward(self, *streams: Tensor) -> Streams:
        """Return the output."""
        joined = torch.cat(streams, dim=1)
        space = tuple(range(2, joined.dim()))
        return (self.linear(joined.mean(space) if space else joined),)
