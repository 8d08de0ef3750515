"""Blocks of reversible transformers.

    n sample, t token or position, w feature of a stream, h head, d feature of a head, c class

Streams are [n, t, w]. Both begin as the embedding, and a head reads their sum, as it would read the one stream of an ordinary
transformer: there the sum of the embedding and of the values of all F and G.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from petra_graph.blocks import Buffered, Head, Shape, Streams, TwoFunctionCoupling
from petra_graph_transformers.declared import (
    LogitsOptions,
    PatchEmbeddingOptions,
    RevTransformerOptions,
    TokenEmbeddingOptions,
)

_STD = 0.02
"""Of initial weights, as in GPT-2."""
_THETA = 10_000.0
"""The base of the wavelengths of rotary positions."""


def _dropout(rate: float) -> nn.Module:
    return nn.Dropout(rate) if rate else nn.Identity()


class _Positioned(Buffered):
    """Vectors [n, t, w] and those of their positions, as two equal streams."""

    def __init__(self, inputs: Sequence[Shape], options: TokenEmbeddingOptions | PatchEmbeddingOptions) -> None:
        super().__init__(inputs, options)
        self.dropout = _dropout(options.dropout)

    def _add_positions(self, longest: int) -> None:
        learned = self.options.positions == "learned"
        self.positions = nn.Parameter(torch.randn(longest, self.options.width) * self.options.std) if learned else None
        self.tables = ("positions",) if learned else ()

    def _streams(self, x_ntw: Tensor) -> Streams:
        if self.positions is not None:
            x_ntw = x_ntw + self.positions[: x_ntw.shape[1]]
        x_ntw = self.dropout(x_ntw)
        return x_ntw, x_ntw


class TokenEmbedding(_Positioned):
    """Tokens, int64 [n, t], to two streams [n, t, w]. Fewer tokens than the network was built for are taken, too."""

    Options = TokenEmbeddingOptions
    draws = False
    streams = 1

    def __init__(self, inputs: Sequence[Shape], options: TokenEmbeddingOptions) -> None:
        super().__init__(inputs, options)
        (shape,) = inputs
        if len(shape) != 1:
            raise ValueError(f"token-embedding reads samples of shape [tokens] (got {list(shape)})")
        self.tokens = nn.Embedding(options.vocabulary, options.width)
        nn.init.normal_(self.tokens.weight, std=options.std)
        self._add_positions(shape[0])

    def forward(self, tokens_nt: Tensor) -> Streams:  # type: ignore[override]
        """Return two equal streams."""
        return self._streams(self.tokens(tokens_nt))


class PatchEmbedding(_Positioned):
    """Images [n, channels, height, width] to two streams [n, t, w], with t squares, row by row."""

    Options = PatchEmbeddingOptions
    draws = False
    streams = 1

    def __init__(self, inputs: Sequence[Shape], options: PatchEmbeddingOptions) -> None:
        super().__init__(inputs, options)
        (shape,) = inputs
        if len(shape) != 3 or shape[1] % options.patch or shape[2] % options.patch:  # noqa: PLR2004  channels, height, width
            sides = f"[channels, height, width], both sides multiples of patch = {options.patch}"
            raise ValueError(f"patch-embedding reads images {sides} (got {list(shape)})")
        channels, height, width = shape
        self.patches = nn.Conv2d(channels, options.width, options.patch, stride=options.patch)
        nn.init.normal_(self.patches.weight, std=options.std / (channels * options.patch**2) ** 0.5)
        self._add_positions(height // options.patch * (width // options.patch))

    def forward(self, images: Tensor) -> Streams:  # type: ignore[override]
        """Return two equal streams."""
        return self._streams(self.patches(images).flatten(2).transpose(1, 2))


class RevTransformer(TwoFunctionCoupling):
    """Two streams [n, t, w]: y1 = x1 + F(x2) with attention F, y2 = x2 + G(y1) with an MLP G."""

    Options = RevTransformerOptions
    draws = False

    def __init__(self, inputs: Sequence[Shape], options: RevTransformerOptions) -> None:
        super().__init__(inputs, options)
        width = inputs[0][-1]
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, options)
        self.mlp_norm = nn.LayerNorm(width)
        hidden = max(1, round(options.expansion * width))
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(approximate="tanh"), nn.Linear(hidden, width), _dropout(options.dropout)
        )
        for layer in (self.attention.read, self.attention.write, self.mlp[0], self.mlp[2]):
            last = layer in {self.attention.write, self.mlp[2]}
            _initialise(layer, options.output_std if last else _STD)

    def f(self, x: Tensor) -> Tensor:
        """Return the attention's value."""
        return cast(Tensor, self.attention(self.attention_norm(x)))

    def g(self, x: Tensor) -> Tensor:
        """Return the MLP's value."""
        return cast(Tensor, self.mlp(self.mlp_norm(x)))


class Attention(nn.Module):
    """Scaled dot-product attention with several heads, x [n, t, w] to [n, t, w]."""

    draws = False

    def __init__(self, width: int, options: RevTransformerOptions) -> None:
        super().__init__()
        self.options = options
        if options.head_width is None and width % options.heads:
            raise ValueError(
                f"rev-transformer cannot split {width} features into {options.heads} heads; name a head_width"
            )
        self.head_width = options.head_width or width // options.heads
        if options.rotary and self.head_width % 2:
            raise ValueError(f"rotary positions need an even number of features of a head (got {self.head_width})")
        inside = options.heads * self.head_width
        self.read = nn.Linear(width, 3 * inside)
        self.write = nn.Linear(inside, width)
        self.dropout = _dropout(options.dropout)

    def forward(self, x_ntw: Tensor) -> Tensor:
        """Return the attention's value."""
        parts = self.read(x_ntw).unflatten(-1, (3, self.options.heads, self.head_width))
        q_nhtd, k_nhtd, v_nhtd = parts.permute(2, 0, 3, 1, 4)
        if self.options.rotary:
            q_nhtd, k_nhtd = rotated(q_nhtd), rotated(k_nhtd)
        dropped = self.options.dropout if self.training else 0.0
        value_nhtd = functional.scaled_dot_product_attention(
            q_nhtd, k_nhtd, v_nhtd, dropout_p=dropped, is_causal=self.options.causal
        )
        return cast(Tensor, self.dropout(self.write(value_nhtd.transpose(1, 2).flatten(2))))


def rotated(x: Tensor) -> Tensor:
    """Rotate features i and i + d/2 of x [..., t, d] by the angle t / 10000^(2i/d) (Su et al. 2021, equation 34)."""
    length, width = x.shape[-2:]
    rates = _THETA ** (-torch.arange(0, width, 2, device=x.device, dtype=torch.float32) / width)
    angles = torch.outer(torch.arange(length, device=x.device, dtype=torch.float32), rates)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class _Logits(Head):
    """Normalisation of the sum of both streams, and a linear layer."""

    Options = LogitsOptions
    streams = 2

    def __init__(self, inputs: Sequence[Shape], options: LogitsOptions) -> None:
        super().__init__(inputs, options)
        self.norm = nn.LayerNorm(inputs[0][-1])
        self.linear = nn.Linear(inputs[0][-1], options.classes)
        _initialise(self.linear, _STD)


class TokenLogits(_Logits):
    """Two streams [n, t, w] to logits [n, c, t], in the order of dimensions that torch's cross-entropy reads."""

    draws = False

    def forward(self, x1: Tensor, x2: Tensor) -> Streams:  # type: ignore[override]
        """Return the logits of the token after each position."""
        return (self.linear(self.norm(x1 + x2)).transpose(1, 2),)


class PooledLogits(_Logits):
    """Two streams [n, t, w] to logits [n, c]."""

    draws = False

    def forward(self, x1: Tensor, x2: Tensor) -> Streams:  # type: ignore[override]
        """Return the logits of a class."""
        return (self.linear(self.norm(x1 + x2).mean(dim=1)),)


def _initialise(layer: nn.Module, std: float) -> None:
    assert isinstance(layer, nn.Linear)
    nn.init.normal_(layer.weight, std=std)
    nn.init.zeros_(layer.bias)
