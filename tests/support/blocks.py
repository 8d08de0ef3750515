"""Blocks that keep every promise, of which tests break one, and the message that a broken one gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from petra_graph_conformance import BrokenPromise, Trial
from torch import Tensor, nn

from petra_graph.blocks import AdditiveCoupling, Block, Buffered, Reversible, Streams
from petra_graph.blocks.block_kinds import Shape

SHAPE = (6,)


class Sound(AdditiveCoupling):
    """What all others are a broken variant of."""

    def __init__(self, inputs: Sequence[Shape], options: Any) -> None:
        super().__init__(inputs, options)
        self.linear = nn.Linear(inputs[0][0], inputs[0][0])

    def residual(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x))


class Scaled(Reversible):
    """One stream times a positive factor."""

    streams = 1

    def __init__(self, inputs: Sequence[Shape], options: Any) -> None:
        super().__init__(inputs, options)
        self.log = nn.Parameter(torch.zeros(inputs[0]))

    def forward(self, *streams: Tensor) -> Streams:
        (x,) = streams
        return (x * self.log.exp(),)

    def inverse(self, *streams: Tensor) -> Streams:
        (y,) = streams
        return (y / self.log.exp(),)


class Stem(Buffered):
    """One stream through a linear layer."""

    streams = 1

    def __init__(self, inputs: Sequence[Shape], options: Any) -> None:
        super().__init__(inputs, options)
        self.linear = nn.Linear(inputs[0][0], 4)

    def forward(self, *streams: Tensor) -> Streams:
        (x,) = streams
        return (self.linear(x),)


def caught(check: Callable[[Trial], object], block: type[Block], **options: Any) -> str:
    """The message of the broken promise."""
    inputs = [SHAPE] * (block.streams or 1)
    with pytest.raises(BrokenPromise) as error:
        check(Trial.of(block, inputs, **options))
    return str(error.value)
