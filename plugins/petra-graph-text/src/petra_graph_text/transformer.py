"""GPT and ViT: an embedding, reversible transformer blocks and a head, each node a stage of its own.

    n sample, t token or position, w feature of a stream, h head, d feature of a head, c class

Streams are [n, t, w]. Both begin as the embedding, and a head reads their sum, as it would read the one stream of an ordinary
transformer: there the sum of the embedding and of the values of all F and G.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Annotated, Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from petra_graph.blocks import Buffered, Head, Shape, Streams, TwoFunctionCoupling
from petra_graph.catalog.blocks import dropped
from petra_graph.plugins import AtLeast, DataFacts, GreaterThan, LessThan, NodeSpec, SpecError

_STD = 0.02
"""Of initial weights, as in GPT-2."""
_THETA = 10_000.0
"""The base of the wavelengths of rotary positions."""
_IMAGE = 3
"""The dimensions of an image: channels, height, width."""


Width = Annotated[int, "features of each stream", AtLeast(1)]
Positions = Annotated[Literal["learned", "none"], '"none" where the blocks are rotary']
Std = Annotated[float, "standard deviation of the initial vectors", GreaterThan(0)]
Dropout = Annotated[float, "probability of dropping a value", AtLeast(0), LessThan(1)]
Patch = Annotated[int, "side of a square, which divides the image's height and width, pixels", AtLeast(1)]
Heads = Annotated[int, "attention heads of a block; they divide the width", AtLeast(1)]
Expansion = Annotated[float, "hidden features of an MLP as a multiple of the width", GreaterThan(0)]
Layers = Annotated[int, "reversible blocks, each of attention and MLP", AtLeast(1)]
Known = Annotated[Literal["learned", "rotary"], "how tokens know where they stand"]
Count = Annotated[int | None, "outputs of the head; default: the data set's classes", AtLeast(2)]


class _Positioned(Buffered):
    """Vectors [n, t, w] and those of their positions, as two equal streams."""

    def __init__(
        self,
        inputs: Sequence[Shape],
        *,
        width: Width,
        positions: Positions = "learned",
        std: Std = 1.0,
        dropout: Dropout = 0.0,
    ) -> None:
        super().__init__(inputs)
        self.dropout = dropped(dropout)
        self.width, self.std, self.learned = width, std, positions == "learned"

    def _add_positions(self, longest: int) -> None:
        self.positions = nn.Parameter(torch.randn(longest, self.width) * self.std) if self.learned else None
        self.tables = ("positions",) if self.learned else ()

    def _streams(self, x_ntw: Tensor) -> Streams:
        if self.positions is not None:
            x_ntw = x_ntw + self.positions[: x_ntw.shape[1]]
        x_ntw = self.dropout(x_ntw)
        return x_ntw, x_ntw


class TokenEmbedding(_Positioned):
    """A vector for each token and, learned, for each position; both streams begin with their sum.

    Tokens, int64 [n, t], to two equal streams [n, t, w]; fewer tokens than the network was built for are taken, too. Radford et al. 2019,
    "Language Models are Unsupervised Multitask Learners".
    """

    draws = False
    streams = 1

    def __init__(
        self,
        inputs: Sequence[Shape],
        *,
        vocabulary: Annotated[int, "number of different tokens", AtLeast(2)],
        **options: Any,
    ) -> None:
        super().__init__(inputs, **options)
        (shape,) = inputs
        if len(shape) != 1:
            raise ValueError(f"token-embedding reads samples of shape [tokens] (got {list(shape)})")
        self.tokens = nn.Embedding(vocabulary, self.width)
        nn.init.normal_(self.tokens.weight, std=self.std)
        self._add_positions(shape[0])

    def forward(self, tokens_nt: Tensor) -> Streams:  # type: ignore[override]
        return self._streams(self.tokens(tokens_nt))


class PatchEmbedding(_Positioned):
    """A linear map of each square of an image, and a learned vector for its position; both streams begin with their sum.

    Images [n, channels, height, width] to two equal streams [n, t, w], with t squares, row by row. Dosovitskiy et al. 2021,
    https://arxiv.org/abs/2010.11929, equation 1, without its class token.
    """

    draws = False
    streams = 1

    def __init__(self, inputs: Sequence[Shape], *, patch: Patch, **options: Any) -> None:
        super().__init__(inputs, **options)
        (shape,) = inputs
        if len(shape) != _IMAGE or shape[1] % patch or shape[2] % patch:
            sides = f"[channels, height, width], both sides multiples of patch = {patch}"
            raise ValueError(f"patch-embedding reads images {sides} (got {list(shape)})")
        channels, height, width = shape
        self.patches = nn.Conv2d(channels, self.width, patch, stride=patch)
        nn.init.normal_(self.patches.weight, std=self.std / (channels * patch**2) ** 0.5)
        self._add_positions(height // patch * (width // patch))

    def forward(self, images: Tensor) -> Streams:  # type: ignore[override]
        return self._streams(self.patches(images).flatten(2).transpose(1, 2))


class RevTransformer(TwoFunctionCoupling):
    """Attention and MLP: y1 = x1 + F(x2) with pre-norm attention F, y2 = x2 + G(y1) with a pre-norm MLP G with GELU.

    Two streams [n, t, w]. Mangalam et al. 2022, "Reversible Vision Transformers", https://arxiv.org/abs/2302.04869, equation 4; rotary
    positions: Su et al. 2021, https://arxiv.org/abs/2104.09864, equation 34.
    """

    draws = False

    def __init__(
        self,
        inputs: Sequence[Shape],
        *,
        heads: Annotated[int, "attention heads", AtLeast(1)] = 4,
        expansion: Expansion = 4.0,
        causal: Annotated[bool, "a token attends to itself and those before it alone"] = False,
        rotary: Annotated[bool, "rotate queries and keys by their positions"] = False,
        dropout: Dropout = 0.0,
        output_std: Annotated[
            float,
            "standard deviation of the initial weights of the last layers of F and G; GPT-2: 0.02 / sqrt(2 * blocks)",
            AtLeast(0),
        ] = 0.02,
    ) -> None:
        super().__init__(inputs)
        width = inputs[0][-1]
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal=causal, rotary=rotary, dropout=dropout)
        self.mlp_norm = nn.LayerNorm(width)
        hidden = max(1, round(expansion * width))
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(approximate="tanh"), nn.Linear(hidden, width), dropped(dropout)
        )
        for layer in (self.attention.read, self.attention.write, self.mlp[0], self.mlp[2]):
            last = layer in {self.attention.write, self.mlp[2]}
            _initialise(layer, output_std if last else _STD)

    def f(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.attention(self.attention_norm(x)))

    def g(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.mlp(self.mlp_norm(x)))


class Attention(nn.Module):
    """Scaled dot-product attention with several heads, x [n, t, w] to [n, t, w]."""

    draws = False

    def __init__(self, width: int, heads: int, *, causal: bool, rotary: bool, dropout: float) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"rev-transformer cannot split {width} features into {heads} heads")
        self.heads, self.causal, self.rotary, self.rate = heads, causal, rotary, dropout
        if rotary and width // heads % 2:
            raise ValueError(f"rotary positions need an even number of features of a head (got {width // heads})")
        self.read = nn.Linear(width, 3 * width)
        self.write = nn.Linear(width, width)
        self.dropout = dropped(dropout)

    def forward(self, x_ntw: Tensor) -> Tensor:
        parts = self.read(x_ntw).unflatten(-1, (3, self.heads, -1))
        q_nhtd, k_nhtd, v_nhtd = parts.permute(2, 0, 3, 1, 4)
        if self.rotary:
            q_nhtd, k_nhtd = rotated(q_nhtd), rotated(k_nhtd)
        dropped = self.rate if self.training else 0.0
        value_nhtd = functional.scaled_dot_product_attention(
            q_nhtd, k_nhtd, v_nhtd, dropout_p=dropped, is_causal=self.causal
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

    streams = 2

    def __init__(self, inputs: Sequence[Shape], *, classes: Annotated[int, "outputs", AtLeast(2)]) -> None:
        super().__init__(inputs)
        self.norm = nn.LayerNorm(inputs[0][-1])
        self.linear = nn.Linear(inputs[0][-1], classes)
        _initialise(self.linear, _STD)


class TokenLogits(_Logits):
    """Two streams [n, t, w] to logits [n, c, t] of the next token, in the order of dimensions that torch's cross-entropy reads."""

    draws = False

    def forward(self, x1: Tensor, x2: Tensor) -> Streams:  # type: ignore[override]
        return (self.linear(self.norm(x1 + x2)).transpose(1, 2),)


class PooledLogits(_Logits):
    """Two streams [n, t, w] to logits [n, c] of a class, from the mean over all positions."""

    draws = False

    def forward(self, x1: Tensor, x2: Tensor) -> Streams:  # type: ignore[override]
        return (self.linear(self.norm(x1 + x2).mean(dim=1)),)


def _initialise(layer: nn.Module, std: float) -> None:
    assert isinstance(layer, nn.Linear)
    nn.init.normal_(layer.weight, std=std)
    nn.init.zeros_(layer.bias)


def _nodes(  # noqa: PLR0917  the options of both networks, in their order
    kind: Literal["token", "patch"],
    embedding: dict[str, int],
    classes: int,
    layers: int,
    heads: int,
    width: int,
    expansion: float,
    positions: str,
    std: float,
    dropout: float,
) -> tuple[NodeSpec, ...]:
    rotary = positions == "rotary"
    begun = {"width": width, "positions": "none" if rotary else "learned", "std": std, "dropout": dropout}
    how = {"causal": kind == "token", "rotary": rotary, "dropout": dropout, "output_std": _STD / sqrt(2 * layers)}
    block = {"heads": heads, "expansion": expansion, **how}
    head = "token-logits" if kind == "token" else "pooled-logits"
    return (
        NodeSpec(name="embedding", block=f"{kind}-embedding", options=embedding | begun),
        NodeSpec(name="block", block="rev-transformer", kind="reversible", repeat=layers, options=block),
        NodeSpec(name="head", block=head, options={"classes": classes}),
    )


def gpt(
    facts: DataFacts,
    *,
    vocabulary: Annotated[int | None, "number of different tokens; default: the data set's classes", AtLeast(2)] = None,
    layers: Layers = 4,
    heads: Heads = 4,
    width: Width = 128,
    expansion: Expansion = 4.0,
    positions: Known = "learned",
    embedding_std: Std = 1.0,
    dropout: Dropout = 0.0,
) -> tuple[NodeSpec, ...]:
    """Reversible GPT: layers + 2 stages, for tokens with a target each."""
    expect_tokens("gpt", facts)
    known = facts.outputs(vocabulary, "vocabulary")
    how = layers, heads, width, expansion, positions, embedding_std, dropout
    return _nodes("token", {"vocabulary": known}, known, *how)


def expect_tokens(architecture: str, facts: DataFacts) -> None:
    """Refuse samples that are not tokens with a target each."""
    if not facts.of_tokens:
        came = f"{facts.dtype} {list(facts.shape)} with targets of shape {list(facts.target_shape)}"
        message = f"{architecture} needs samples int64 [tokens] with a target for each token; the data set has {came}"
        raise SpecError(message, 'use data set "text-characters", "text-bytes" or "text-tokens"')


def vit(
    facts: DataFacts,
    *,
    patch: Patch = 4,
    classes: Count = None,
    layers: Layers = 4,
    heads: Heads = 4,
    width: Width = 128,
    expansion: Expansion = 4.0,
    positions: Known = "learned",
    embedding_std: Std = 1.0,
    dropout: Dropout = 0.0,
) -> tuple[NodeSpec, ...]:
    """Reversible ViT: layers + 2 stages, for images of any size."""
    how = layers, heads, width, expansion, positions, embedding_std, dropout
    return _nodes("patch", {"patch": patch}, facts.outputs(classes), *how)
