"""Blocks that join several edges."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from petra_graph.blocks import Buffered, Shape, Streams
from petra_graph.catalog.blocks.declared import AddOptions


class Add(Buffered):
    """The sum of the inputs, stream by stream: with two streams each, (a, b) and (c, d) become (a + c, b + d)."""

    Options = AddOptions

    def __init__(self, inputs: Sequence[Shape], options: AddOptions) -> None:
        super().__init__(inputs, options)
        if len(inputs) % options.streams:
            message = f"its inputs carry {len(inputs)} streams, which is no multiple of streams = {options.streams}"
            raise ValueError(message)

    def forward(self, *streams: Tensor) -> Streams:
        """Return the sums, added in the order of the inputs."""
        count = self.options.streams
        return tuple(reduce(torch.add, streams[index::count]) for index in range(count))
