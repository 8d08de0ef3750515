"""Heads of classifiers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from petra_graph.blocks import Head, Shape, Streams
from petra_graph.catalog.blocks.declared import PoolLinearOptions


class PoolLinear(Head):
    """Streams [n, c, ...] to one output [n, outputs]."""

    Options = PoolLinearOptions

    def __init__(self, inputs: Sequence[Shape], options: PoolLinearOptions) -> None:
        super().__init__(inputs, options)
        self.linear = nn.Linear(sum(shape[0] for shape in inputs), options.outputs)

    def forward(self, *streams: Tensor) -> Streams:
        """Return the output."""
        joined = torch.cat(streams, dim=1)
        space = tuple(range(2, joined.dim()))
        return (self.linear(joined.mean(space) if space else joined),)
