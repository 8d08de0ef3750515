"""Blocks, data set and metric as the entry points name them, without torch, transformers or tokenizers."""

from __future__ import annotations

from attrs import evolve, frozen
from petra_graph_transformers.declared import TextOptions

from petra_graph.plugins import (
    AtLeast,
    BlockDeclaration,
    DataFacts,
    DataSetDeclaration,
    Length,
    MetricDeclaration,
    option,
)
from petra_graph_hf.tokenizers_on_disk import vocabulary_of

_HERE = "petra_graph_hf"


@frozen(kw_only=True)
class PieceOptions:
    """The model that a node is a piece of."""

    config: str = option("transformers' configuration of the whole model, as JSON", validator=Length(at_least=2))


EMBEDDING = BlockDeclaration(
    summary="The token embedding of a decoder of Hugging Face transformers.",
    options=PieceOptions,
    build=f"{_HERE}.blocks:Embedding",
    kind="buffered",
    streams=1,
)
LAYER = BlockDeclaration(
    summary="A decoder layer of Hugging Face transformers: attention and MLP, each added to the stream.",
    options=PieceOptions,
    build=f"{_HERE}.blocks:Layer",
    kind="buffered",
    streams=1,
)
LOGITS = BlockDeclaration(
    summary="The last normalisation and the head of a decoder of Hugging Face transformers.",
    options=PieceOptions,
    build=f"{_HERE}.blocks:Logits",
    kind="head",
    streams=1,
)


@frozen(kw_only=True)
class TokensOptions(TextOptions):
    """Files, windows and split of a text in UTF-8, whose tokens are a tokenizer's."""

    tokenizer: str = option(
        "file tokenizer.json of the model, or the folder that has it", validator=Length(at_least=1), is_path=True
    )
    vocabulary: int | None = option(
        "number of tokens of the network, if that is more than the tokenizer has; default: the tokenizer's",
        default=None,
        validator=AtLeast(2),
    )


def token_facts(options: TokensOptions) -> DataFacts:
    """Return the facts of windows and their next tokens; classes are None where only the tokenizer tells their number."""
    window = (options.context,)
    return DataFacts(shape=window, dtype="int64", classes=options.vocabulary, target_shape=window)


def counted(options: TokensOptions) -> TokensOptions:
    """Return the options with the tokenizer's number of tokens, if no number is given.

    Raises:
        SpecError: there is no tokenizer, or it cannot be read.
    """
    if options.vocabulary is not None:
        return options
    return evolve(options, vocabulary=vocabulary_of(options.tokenizer))


TEXT_TOKENS = DataSetDeclaration(
    summary="Any text as tokens of a tokenizer.json: windows, and the token after each of theirs.",
    options=TokensOptions,
    build=f"{_HERE}.text:text_tokens",
    facts=token_facts,
    completed=counted,
    read=f"{_HERE}.text:read_tokens",
    codec=f"{_HERE}.text:codec",
)


@frozen(kw_only=True)
class BitsPerByteOptions:
    """The tokenizer that says how many bytes of text a token is."""

    tokenizer: str = option(
        "file tokenizer.json of the data set, or the folder that has it", validator=Length(at_least=1), is_path=True
    )


BITS_PER_BYTE = MetricDeclaration(
    summary="Cross-entropy of a text in bits a byte, from logits of tokens.",
    options=BitsPerByteOptions,
    build=f"{_HERE}.bits_per_byte:BitsPerByte",
    better="lower",
)
