"""GPT and ViT: an embedding, reversible transformer blocks and a head, each node a stage of its own.

    n sample, t token or position, w feature of a stream, h head, d feature of a head, c class

Streams are [n, t, w]. Both begin as the embedding, and a head reads their sum, as it would read the one stream of an ordinary
transformer: there the sum of the embedding and of the values of all F and G.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any, Literal, cast

import torch
from attrs import frozen
from torch import Tensor, nn
from torch.nn import functional

from petra_graph.blocks import Buffered, Head, Shape, Streams, TwoFunctionCoupling
from petra_graph.plugins import AtLeast, DataFacts, GreaterThan, LessThan, NodeSpec, Problem, SpecError, option

_STD = 0.02
"""Of initial weights, as in GPT-2."""
_THETA = 10_000.0
"""The base of the wavelengths of rotary positions."""
_IMAGE = 3
"""The dimensions of an image: channels, height, width."""


def _dropout() -> Any:
    return option("probability of dropping a value", default=0.0, validator=[AtLeast(0), LessThan(1)])


@frozen(kw_only=True)
class EmbeddingOptions:
    """The streams that an embedding begins."""

    width: int = option("features of each stream", validator=AtLeast(1))
    positions: Literal["learned", "none"] = option('"none" where the blocks are rotary', default="learned")
    std: float = option("standard deviation of the initial vectors", default=1.0, validator=GreaterThan(0))
    dropout: float = _dropout()


@frozen(kw_only=True)
class TokenEmbeddingOptions(EmbeddingOptions):
    """A vector for each token and, learned, for each position; both streams begin with their sum."""

    vocabulary: int = option("number of different tokens", validator=AtLeast(2))


@frozen(kw_only=True)
class PatchEmbeddingOptions(EmbeddingOptions):
    """A linear map of each square of an image, and a learned vector for its position; both streams begin with their sum."""

    patch: int = option(
        "side of a square, which divides the image's height and width", unit="pixels", validator=AtLeast(1)
    )


@frozen(kw_only=True)
class RevTransformerOptions:
    """Attention and MLP of a block."""

    heads: int = option("attention heads", default=4, validator=AtLeast(1))
    head_width: int | None = option(
        "features of a head; default: the stream's by the number of heads", default=None, validator=AtLeast(1)
    )
    expansion: float = option(
        "hidden features of the MLP as a multiple of the stream's", default=4.0, validator=GreaterThan(0)
    )
    causal: bool = option("a token attends to itself and those before it alone", default=False)
    rotary: bool = option("rotate queries and keys by their positions", default=False)
    dropout: float = _dropout()
    output_std: float = option(
        "standard deviation of the initial weights of the last layers of F and G; GPT-2: 0.02 / sqrt(2 * blocks)",
        default=0.02,
        validator=AtLeast(0),
    )


@frozen(kw_only=True)
class LogitsOptions:
    """The head's outputs."""

    classes: int = option("outputs", validator=AtLeast(2))


def _dropped(rate: float) -> nn.Module:
    return nn.Dropout(rate) if rate else nn.Identity()


class _Positioned(Buffered):
    """Vectors [n, t, w] and those of their positions, as two equal streams."""

    def __init__(self, inputs: Sequence[Shape], options: EmbeddingOptions) -> None:
        super().__init__(inputs, options)
        self.dropout = _dropped(options.dropout)

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
    """Tokens, int64 [n, t], to two equal streams [n, t, w]; fewer tokens than the network was built for are taken, too.

    Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
    """

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
    """Images [n, channels, height, width] to two equal streams [n, t, w], with t squares, row by row.

    Dosovitskiy et al. 2021, https://arxiv.org/abs/2010.11929, equation 1, without its class token.
    """

    Options = PatchEmbeddingOptions
    draws = False
    streams = 1

    def __init__(self, inputs: Sequence[Shape], options: PatchEmbeddingOptions) -> None:
        super().__init__(inputs, options)
        (shape,) = inputs
        if len(shape) != _IMAGE or shape[1] % options.patch or shape[2] % options.patch:
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
    """Two streams [n, t, w]: y1 = x1 + F(x2) with pre-norm attention F, y2 = x2 + G(y1) with a pre-norm MLP G with GELU.

    Mangalam et al. 2022, "Reversible Vision Transformers", https://arxiv.org/abs/2302.04869, equation 4; rotary positions: Su et
    al. 2021, https://arxiv.org/abs/2104.09864, equation 34.
    """

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
            nn.Linear(width, hidden), nn.GELU(approximate="tanh"), nn.Linear(hidden, width), _dropped(options.dropout)
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
        self.dropout = _dropped(options.dropout)

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
    """Two streams [n, t, w] to logits [n, c, t] of the next token, in the order of dimensions that torch's cross-entropy reads."""

    draws = False

    def forward(self, x1: Tensor, x2: Tensor) -> Streams:  # type: ignore[override]
        """Return the logits of the token after each position."""
        return (self.linear(self.norm(x1 + x2)).transpose(1, 2),)


class PooledLogits(_Logits):
    """Two streams [n, t, w] to logits [n, c] of a class, from the mean over all positions."""

    draws = False

    def forward(self, x1: Tensor, x2: Tensor) -> Streams:  # type: ignore[override]
        """Return the logits of a class."""
        return (self.linear(self.norm(x1 + x2).mean(dim=1)),)


def _initialise(layer: nn.Module, std: float) -> None:
    assert isinstance(layer, nn.Linear)
    nn.init.normal_(layer.weight, std=std)
    nn.init.zeros_(layer.bias)


@frozen(kw_only=True)
class TransformerOptions:
    """The size of the network."""

    layers: int = option("reversible blocks, each of attention and MLP", default=4, validator=AtLeast(1))
    heads: int = option("attention heads of a block; they divide the width", default=4, validator=AtLeast(1))
    width: int = option("features of each of the two streams", default=128, validator=AtLeast(1))
    expansion: float = option(
        "hidden features of an MLP as a multiple of the width", default=4.0, validator=GreaterThan(0)
    )
    positions: Literal["learned", "rotary"] = option("how tokens know where they stand", default="learned")
    embedding_std: float = option(
        "standard deviation of the initial vectors of tokens and positions", default=1.0, validator=GreaterThan(0)
    )
    dropout: float = _dropout()

    def __attrs_post_init__(self) -> None:
        each = self.width // self.heads
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads (got width = {self.width}, heads = {self.heads})")
        if self.positions == "rotary" and each % 2:
            raise ValueError(
                f'positions = "rotary" needs an even number of features of a head, width / heads (got {each})'
            )


@frozen(kw_only=True)
class GptOptions(TransformerOptions):
    """The size of the network, whose context is the length of the data set's samples."""

    vocabulary: int | None = option(
        "number of different tokens; default: the data set's classes", default=None, validator=AtLeast(2)
    )


@frozen(kw_only=True)
class VitOptions(TransformerOptions):
    """The size of the network, and of the squares that images are cut into."""

    patch: int = option(
        "side of a square, which divides the image's height and width", default=4, unit="pixels", validator=AtLeast(1)
    )
    classes: int | None = option(
        "outputs of the head; default: the data set's classes", default=None, validator=AtLeast(2)
    )


def gpt(options: GptOptions, facts: DataFacts) -> tuple[NodeSpec, ...]:
    """Reversible GPT: layers + 2 stages, for tokens with a target each.

    Raises:
        SpecError: samples are not tokens with a target each, or the size of the vocabulary is unknown.
    """
    expect_tokens("gpt", facts)
    vocabulary = options.vocabulary or facts.classes
    if vocabulary is None:
        message = "the size of the vocabulary is unknown: only the data set's files tell it"
        hint = "set vocabulary here, or in data.options where the data set has it"
        raise SpecError(Problem(message=message, hint=hint, path=("vocabulary",)))
    return _nodes("token", options, {"vocabulary": vocabulary}, vocabulary)


def expect_tokens(architecture: str, facts: DataFacts) -> None:
    """Refuse samples that are not tokens with a target each."""
    if not facts.of_tokens:
        came = f"{facts.dtype} {list(facts.shape)} with targets of shape {list(facts.target_shape)}"
        message = f"{architecture} needs samples int64 [tokens] with a target for each token; the data set has {came}"
        raise SpecError(Problem(message=message, hint='use data set "text-characters", "text-bytes" or "text-tokens"'))


def vit(options: VitOptions, facts: DataFacts) -> tuple[NodeSpec, ...]:
    """Reversible ViT: layers + 2 stages, for images of any size.

    Raises:
        SpecError: samples are not images whose sides patches divide, or the number of classes is unknown.
    """
    if len(facts.shape) != _IMAGE:
        message = f"vit needs images [channels, height, width]; samples are {list(facts.shape)}"
        raise SpecError(Problem(message=message, hint="use a data set of images"))
    if facts.shape[1] % options.patch or facts.shape[2] % options.patch:
        message = f"patch must divide the image's sides, {facts.shape[1]}x{facts.shape[2]} (got {options.patch})"
        raise SpecError(Problem(message=message, hint="choose a common divisor of both", path=("patch",)))
    classes = options.classes or facts.classes
    if classes is None:
        message = "the number of classes is unknown: only the data set's files tell it"
        raise SpecError(Problem(message=message, hint="set classes", path=("classes",)))
    return _nodes("patch", options, {"patch": options.patch}, classes)


def _nodes(kind: str, options: TransformerOptions, embedding: dict[str, int], classes: int) -> tuple[NodeSpec, ...]:
    rotary = options.positions == "rotary"
    common = {
        "width": options.width,
        "positions": "none" if rotary else "learned",
        "std": options.embedding_std,
        "dropout": options.dropout,
    }
    block = {
        "heads": options.heads,
        "expansion": options.expansion,
        "causal": kind == "token",
        "rotary": rotary,
        "dropout": options.dropout,
        "output_std": _STD / sqrt(2 * options.layers),
    }
    head = "token-logits" if kind == "token" else "pooled-logits"
    return (
        NodeSpec(name="embedding", block=f"{kind}-embedding", options=embedding | common),
        NodeSpec(name="block", block="rev-transformer", kind="reversible", repeat=options.layers, options=block),
        NodeSpec(name="head", block=head, options={"classes": classes}),
    )
