"""GPT and ViT by their options: an embedding, reversible transformer blocks, a head. Each node is a stage of its own."""

from __future__ import annotations

from math import sqrt

from attrs import frozen

from petra_graph.plugins import (
    ArchitectureDeclaration,
    AtLeast,
    DataFacts,
    GreaterThan,
    OneOf,
    Problem,
    SpecError,
    option,
)
from petra_graph.spec.model import NodeSpec
from petra_graph_transformers.declared import dropout

_STD = 0.02
"""Of initial weights, as in GPT-2."""
_IMAGE = 3
"""The dimensions of an image: channels, height, width."""


@frozen(kw_only=True)
class TransformerOptions:
    """The size of the network."""

    layers: int = option("reversible blocks, each of attention and MLP", default=4, validator=AtLeast(1))
    heads: int = option("attention heads of a block; they divide the width", default=4, validator=AtLeast(1))
    width: int = option("features of each of the two streams", default=128, validator=AtLeast(1))
    expansion: float = option(
        "hidden features of an MLP as a multiple of the width", default=4.0, validator=GreaterThan(0)
    )
    positions: str = option("how tokens know where they stand", default="learned", validator=OneOf("learned", "rotary"))
    embedding_std: float = option(
        "standard deviation of the initial vectors of tokens and positions", default=1.0, validator=GreaterThan(0)
    )
    dropout: float = dropout()

    def __attrs_post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads (got width = {self.width}, heads = {self.heads})")
        if self.positions == "rotary" and self.width // self.heads % 2:
            each = self.width // self.heads
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
    """Return the nodes of a language model for such samples.

    Raises:
        SpecError: samples are not tokens with a target each, or the size of the vocabulary is unknown.
    """
    if facts.dtype != "int64" or len(facts.shape) != 1 or facts.target_shape != facts.shape:
        came = f"{facts.dtype} {list(facts.shape)} with targets of shape {list(facts.target_shape)}"
        message = f"gpt needs samples int64 [tokens] with a target for each token; the data set has {came}"
        raise SpecError(Problem(message=message, hint='use data set "text-characters" or "text-bytes"'))
    vocabulary = options.vocabulary or facts.classes
    if vocabulary is None:
        message = "the size of the vocabulary is unknown: only the data set's files tell it"
        raise SpecError(
            Problem(
                message=message,
                hint="set vocabulary here, or in data.options where the data set has it",
                path=("vocabulary",),
            )
        )
    return _nodes("token", options, {"vocabulary": vocabulary}, vocabulary)


def vit(options: VitOptions, facts: DataFacts) -> tuple[NodeSpec, ...]:
    """Return the nodes of a vision transformer for such images.

    Raises:
        SpecError: samples are not images whose sides patches divide, or the number of classes is unknown.
    """
    problems = []
    if len(facts.shape) != _IMAGE:
        message = f"vit needs images [channels, height, width]; samples are {list(facts.shape)}"
        problems.append(Problem(message=message, hint="use a data set of images"))
    elif facts.shape[1] % options.patch or facts.shape[2] % options.patch:
        sides = f"{facts.shape[1]}x{facts.shape[2]}"
        problems.append(
            Problem(
                message=f"patch must divide the image's sides, {sides} (got {options.patch})",
                hint="choose a common divisor of both",
                path=("patch",),
            )
        )
    classes = options.classes or facts.classes
    if classes is None:
        message = "the number of classes is unknown: only the data set's files tell it"
        problems.append(Problem(message=message, hint="set classes", path=("classes",)))
    if problems or classes is None:
        raise SpecError(problems)
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


GPT = ArchitectureDeclaration(
    summary="Reversible GPT: layers + 2 stages, for tokens with a target each.",
    options=GptOptions,
    build=f"{__name__}:gpt",
)
VIT = ArchitectureDeclaration(
    summary="Reversible ViT: layers + 2 stages, for images of any size.",
    options=VitOptions,
    build=f"{__name__}:vit",
)
