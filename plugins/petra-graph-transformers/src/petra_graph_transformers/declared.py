"""Blocks, loss, data sets and callback as the entry points name them, without torch or numpy."""

from __future__ import annotations

from typing import Any

from attrs import Attribute, evolve, frozen

from petra_graph.inference.continued_text import SamplingOptions
from petra_graph.plugins import (
    AtLeast,
    AtMost,
    BlockDeclaration,
    CallbackDeclaration,
    DataFacts,
    DataSetDeclaration,
    GreaterThan,
    Length,
    LessThan,
    LossDeclaration,
    OneOf,
    option,
)
from petra_graph_transformers.files import read_files

_HERE = "petra_graph_transformers"
BYTES = 256
"""The vocabulary of bytes."""


def dropout() -> Any:
    """Return the key `dropout`."""
    return option("probability of dropping a value", default=0.0, validator=[AtLeast(0), LessThan(1)])


def positions(text: str, default: str) -> Any:
    """Return the key `positions`."""
    return option(text, default=default, validator=OneOf("learned", "none"))


def std() -> Any:
    """Return the key `std`."""
    return option("standard deviation of the initial vectors", default=1.0, validator=GreaterThan(0))


@frozen(kw_only=True)
class TokenEmbeddingOptions:
    """A vector for each token and, learned, for each position; both streams begin with their sum.

    Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
    """

    vocabulary: int = option("number of different tokens", validator=AtLeast(2))
    width: int = option("features of each stream", validator=AtLeast(1))
    positions: str = positions('"none" where the blocks are rotary', "learned")
    std: float = std()
    dropout: float = dropout()


@frozen(kw_only=True)
class PatchEmbeddingOptions:
    """A linear map of each square of an image, and a learned vector for its position; both streams begin with their sum.

    Dosovitskiy et al. 2021, https://arxiv.org/abs/2010.11929, equation 1, without its class token.
    """

    patch: int = option(
        "side of a square, which divides the image's height and width", unit="pixels", validator=AtLeast(1)
    )
    width: int = option("features of each stream", validator=AtLeast(1))
    positions: str = positions('"none" where the blocks are rotary', "learned")
    std: float = std()
    dropout: float = dropout()


def _rotates(options: RevTransformerOptions, _: Attribute[bool], value: bool) -> None:
    if value and options.head_width is not None and options.head_width % 2:
        raise ValueError(f"needs an even head_width, whose features it rotates in pairs (got {options.head_width})")


@frozen(kw_only=True)
class RevTransformerOptions:
    """F is pre-norm attention, G a pre-norm MLP with GELU: y1 = x1 + F(x2), y2 = x2 + G(y1).

    Mangalam et al. 2022, "Reversible Vision Transformers", https://arxiv.org/abs/2302.04869, equation 4; rotary positions: Su et
    al. 2021, https://arxiv.org/abs/2104.09864, equation 34.
    """

    heads: int = option("attention heads", default=4, validator=AtLeast(1))
    head_width: int | None = option(
        "features of a head; default: the stream's by the number of heads", default=None, validator=AtLeast(1)
    )
    expansion: float = option(
        "hidden features of the MLP as a multiple of the stream's", default=4.0, validator=GreaterThan(0)
    )
    causal: bool = option("a token attends to itself and those before it alone", default=False)
    rotary: bool = option("rotate queries and keys by their positions", default=False, validator=_rotates)
    dropout: float = dropout()
    output_std: float = option(
        "standard deviation of the initial weights of the last layers of F and G; GPT-2: 0.02 / sqrt(2 * blocks)",
        default=0.02,
        validator=AtLeast(0),
    )


@frozen(kw_only=True)
class LogitsOptions:
    """Normalisation of the sum of both streams, and a linear layer."""

    classes: int = option("outputs", validator=AtLeast(2))


TOKEN_EMBEDDING = BlockDeclaration(
    summary="Tokens to two equal streams of vectors; the first node of a language model.",
    options=TokenEmbeddingOptions,
    build=f"{_HERE}.blocks:TokenEmbedding",
    kind="buffered",
    streams=1,
)
PATCH_EMBEDDING = BlockDeclaration(
    summary="Squares of an image to two equal streams of vectors; the first node of a vision transformer.",
    options=PatchEmbeddingOptions,
    build=f"{_HERE}.blocks:PatchEmbedding",
    kind="buffered",
    streams=1,
)
REV_TRANSFORMER = BlockDeclaration(
    summary="Reversible transformer block: two-function coupling of attention and MLP.",
    options=RevTransformerOptions,
    build=f"{_HERE}.blocks:RevTransformer",
    kind="reversible",
    streams=2,
)
TOKEN_LOGITS = BlockDeclaration(
    summary="Logits of the next token at each position.",
    options=LogitsOptions,
    build=f"{_HERE}.blocks:TokenLogits",
    kind="head",
    streams=2,
)
POOLED_LOGITS = BlockDeclaration(
    summary="Logits of a class from the mean over all positions.",
    options=LogitsOptions,
    build=f"{_HERE}.blocks:PooledLogits",
    kind="head",
    streams=2,
)
TOKEN_CROSS_ENTROPY = LossDeclaration(
    summary="Mean cross-entropy over tokens; counts top-1, and bits a token.",
    build=f"{_HERE}.loss:TokenCrossEntropy",
    logits=True,
)


@frozen(kw_only=True)
class TextOptions:
    """Files, windows and split of a text, whose tokens are its bytes."""

    root: str = option(
        'file, or folder of files; ~ and $NAME are expanded; "stdlib": the source of Python\'s standard library',
        validator=Length(at_least=1),
    )
    pattern: str = option(
        "files of a folder, in the order of their names; hidden files are left out",
        default="**/*",
        validator=Length(at_least=1),
    )
    context: int = option("length of a window", default=64, unit="tokens", validator=AtLeast(1))
    test_share: float = option(
        "share of the text, from its end, that is kept for the test",
        default=0.1,
        validator=[GreaterThan(0), LessThan(1)],
    )
    samples: int | None = option(
        "training windows in an epoch, drawn at random; default: as many as fit side by side",
        default=None,
        validator=AtLeast(1),
    )


@frozen(kw_only=True)
class CharactersOptions(TextOptions):
    """Files, windows and split of a text in UTF-8, whose tokens are its characters."""

    vocabulary: int | None = option(
        "number of different characters that must be in the files; default: they are counted. Plans without the files need it",
        default=None,
        validator=[AtLeast(2), AtMost(0x110000)],
    )


def text_facts(options: TextOptions) -> DataFacts:
    """Return the facts of windows and their next tokens; classes are None where only the files tell their number."""
    classes = options.vocabulary if isinstance(options, CharactersOptions) else BYTES
    window = (options.context,)
    return DataFacts(shape=window, dtype="int64", classes=classes, target_shape=window)


def counted(options: CharactersOptions) -> CharactersOptions:
    """Return the options with the number of characters that the files have, if it is not given.

    Raises:
        SpecError: there is no file, or one is not UTF-8.
    """
    if options.vocabulary is not None:
        return options
    files = read_files(options.root, options.pattern, utf8=True)
    return evolve(options, vocabulary=len(set[str]().union(*(file.decode() for file in files))))


TEXT_BYTES = DataSetDeclaration(
    summary="Any files as bytes: windows, and the byte after each of theirs.",
    options=TextOptions,
    build=f"{_HERE}.text:text_bytes",
    facts=text_facts,
    read=f"{_HERE}.text:read_bytes",
    codec=f"{_HERE}.codec:of_bytes",
)
TEXT_CHARACTERS = DataSetDeclaration(
    summary="Any text as characters: windows, and the character after each of theirs.",
    options=CharactersOptions,
    build=f"{_HERE}.text:text_characters",
    facts=text_facts,
    completed=counted,
    read=f"{_HERE}.text:read_characters",
    codec=f"{_HERE}.codec:of_characters",
)


TEXT_SAMPLES = CallbackDeclaration(
    summary="Writes a sample of the network's text after every evaluation, to `samples.txt`.",
    options=SamplingOptions,
    build=f"{_HERE}.text_samples:TextSamples",
    reads_weights=True,
)
