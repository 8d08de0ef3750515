"""Blocks, data set and metric as the entry points name them, without torch, transformers or tokenizers."""

from __future__ import annotations

from typing import Any

from attrs import evolve, frozen
from petra_graph_transformers.declared import TextOptions
from petra_graph_vision.data_set_options import AugmentedOptions

from petra_graph.plugins import (
    AtLeast,
    BlockDeclaration,
    DataFacts,
    DataSetDeclaration,
    GreaterThan,
    Length,
    LessThan,
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


def _tokenizer() -> Any:
    return option(
        "file tokenizer.json of the model, or the folder that has it", validator=Length(at_least=1), is_path=True
    )


def _vocabulary() -> Any:
    return option(
        "number of tokens of the network, if that is more than the tokenizer has; default: the tokenizer's",
        default=None,
        validator=AtLeast(2),
    )


@frozen(kw_only=True)
class TokensOptions(TextOptions):
    """Files, windows and split of a text in UTF-8, whose tokens are a tokenizer's."""

    tokenizer: str = _tokenizer()
    vocabulary: int | None = _vocabulary()


@frozen(kw_only=True, slots=False)  # images have options of another class besides
class SourceOptions:
    """Where a data set of the library `datasets` is, and its splits."""

    path: str | None = option(
        "folder that save_to_disk has written; or a file, or a folder of files: .parquet, .json, .jsonl, .csv, .tsv",
        default=None,
        validator=Length(at_least=1),
        is_path=True,
    )
    hub: str | None = option(
        "in the place of path: its name on the Hugging Face Hub, or that of one that was fetched before",
        default=None,
        validator=Length(at_least=1),
    )
    config: str | None = option("the configuration of a name on the hub, if it has several", default=None)
    revision: str | None = option("the version of a name on the hub: a tag, a branch or a commit", default=None)
    train: str = option(
        "split for the training; a single file is this one", default="train", validator=Length(at_least=1)
    )
    test: str = option("split for the test", default="test", validator=Length(at_least=1))
    validation: str | None = option(
        'split for the validation, which data.validation = "validation" names',
        default=None,
        validator=Length(at_least=1),
    )
    test_share: float | None = option(
        "share of the training rows that is kept for the test, the same in every run; default: the split `test`",
        default=None,
        validator=[GreaterThan(0), LessThan(1)],
    )

    def __attrs_post_init__(self) -> None:
        if (self.path is None) == (self.hub is None):
            raise ValueError("needs one of path and hub, and not both")


@frozen(kw_only=True)
class DocumentsOptions(SourceOptions):
    """Documents, and how they become windows of tokens."""

    column: str = option("column of the documents", default="text", validator=Length(at_least=1))
    prompt: str | None = option(
        "column of what stands before each document, which is read and not learned: its tokens have the target -100",
        default=None,
        validator=Length(at_least=1),
    )
    tokenizer: str = _tokenizer()
    vocabulary: int | None = _vocabulary()
    end_of_text: str = option("token behind each document", default="<|endoftext|>", validator=Length(at_least=1))
    context: int = option("length of a window", default=64, unit="tokens", validator=AtLeast(1))
    packed: bool = option(
        "cut windows out of documents one after another; false: a document a window, cut off or filled up with targets of -100",
        default=True,
    )


def token_facts(options: TokensOptions | DocumentsOptions) -> DataFacts:
    """Return the facts of windows and their next tokens; classes are None where only the tokenizer tells their number."""
    window = (options.context,)
    return DataFacts(shape=window, dtype="int64", classes=options.vocabulary, target_shape=window)


def counted(options: Any) -> Any:
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


HF_TEXT = DataSetDeclaration(
    summary="Documents of a data set of the library `datasets` as tokens: windows, and the token after each of theirs.",
    options=DocumentsOptions,
    build=f"{_HERE}.documents:hf_text",
    facts=token_facts,
    completed=counted,
    read=f"{_HERE}.text:read_tokens",
    codec=f"{_HERE}.text:codec",
)


@frozen(kw_only=True)
class PicturesOptions(SourceOptions, AugmentedOptions):
    """Images with labels, the one size of all, augmentation and normalisation."""

    image: str = option("column of the images", default="image", validator=Length(at_least=1))
    label: str = option(
        "column of the classes: whole numbers from 0, or texts", default="label", validator=Length(at_least=1)
    )
    size: int = option(
        "height and width of an image; others are resized by their shorter side, then cropped at the centre",
        unit="pixels",
        validator=AtLeast(1),
    )
    classes: int | None = option("number of classes; default: they are counted", default=None, validator=AtLeast(2))


def _count_classes(options: PicturesOptions) -> PicturesOptions:
    from petra_graph_hf.pictures import count_classes

    return options if options.classes is not None else count_classes(options)


HF_IMAGES = DataSetDeclaration(
    summary="Images of a data set of the library `datasets` with their labels, brought to one size.",
    options=PicturesOptions,
    build=f"{_HERE}.pictures:hf_images",
    facts=lambda options: DataFacts(
        shape=(3, options.size, options.size), classes=options.classes, mean=options.mean, std=options.std
    ),
    completed=_count_classes,
)


@frozen(kw_only=True)
class BitsPerByteOptions:
    """The tokenizer that says how many bytes of text a token is."""

    tokenizer: str = option(
        "file tokenizer.json of the data set, or the folder that has it", validator=Length(at_least=1), is_path=True
    )
    end_of_text: str | None = option(
        "token that the data set puts behind each document, which is no byte of it", default=None
    )


BITS_PER_BYTE = MetricDeclaration(
    summary="Cross-entropy of a text in bits a byte, from logits of tokens.",
    options=BitsPerByteOptions,
    build=f"{_HERE}.bits_per_byte:BitsPerByte",
    better="lower",
)
