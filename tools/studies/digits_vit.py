"""A reversible vision transformer for handwritten digits, of which `digits_vit.toml` measures what staleness costs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from petra_graph.blocks import Buffered, Head, Shape, Streams, TwoFunctionCoupling

WIDTH, PATCH, HEADS, CLASSES = 32, 2, 4, 10


class Patches(Buffered):
    """Images [n, 1, h, w] to two equal streams of tokens [n, h * w / PATCH^2, WIDTH]."""

    streams = 1

    def __init__(self, inputs: Sequence[Shape], options: object) -> None:
        super().__init__(inputs, options)
        channels, height, width = inputs[0]
        self.embed = nn.Conv2d(channels, WIDTH, PATCH, stride=PATCH)
        self.position = nn.Parameter(0.02 * torch.randn(height * width // PATCH**2, WIDTH))

    def forward(self, image: Tensor) -> Streams:  # type: ignore[override]
        """Return the streams."""
        tokens = self.embed(image).flatten(2).transpose(1, 2) + self.position
        return tokens, tokens


class Transformer(TwoFunctionCoupling):
    """Streams [n, tokens, WIDTH]; F is self-attention and G a perceptron, each behind a layer normalisation."""

    def __init__(self, inputs: Sequence[Shape], options: object) -> None:
        super().__init__(inputs, options)
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.joined = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def f(self, x: Tensor) -> Tensor:
        """Return the attention's output."""
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in self.qkv(self.before_attention(x)).chunk(3, dim=-1)
        )
        value: Tensor = self.joined(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return value

    def g(self, x: Tensor) -> Tensor:
        """Return the perceptron's output."""
        value: Tensor = self.mlp(self.before_mlp(x))
        return value


class Classifier(Head):
    """Streams [n, tokens, WIDTH] to one output [n, CLASSES]."""

    def __init__(self, inputs: Sequence[Shape], options: object) -> None:
        super().__init__(inputs, options)
        self.norm, self.linear = nn.LayerNorm(2 * WIDTH), nn.Linear(2 * WIDTH, CLASSES)

    def forward(self, *streams: Tensor) -> Streams:
        """Return the output."""
        return (self.linear(self.norm(torch.cat(streams, dim=-1)).mean(1)),)
