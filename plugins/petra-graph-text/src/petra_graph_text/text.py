"""Text as data: files to tokens, tokens to windows, and back. Tokens are bytes, characters, or those of a tokenizer on disk.

    test       [0, T) [T, 2T) ...               in order, side by side; the text's last, shorter window is left out
    training   [s, s + T)                       s drawn from (seed, epoch, index) alone, by a hash, not by a generator's state

The targets of a window are the tokens one position further. The text is cut by position: its end is for the test, and what is before it for
the validation if a share of the training is.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray
from torch import Tensor

from petra_graph.plugins import (
    AtLeast,
    AtMost,
    DataFacts,
    DataSetDeclaration,
    GreaterThan,
    Length,
    LessThan,
    Problem,
    SpecError,
    TextCodec,
    option,
)
from petra_graph_text.tokenizers_on_disk import TokenCodec, tokenizer_of, vocabulary_of

BYTES = 256
"""The vocabulary of bytes."""
STDLIB = "stdlib"
_INSTALLED = {"site-packages", "dist-packages"}
"""Folders inside the standard library's that belong to other packages."""
_MASK = 2**64 - 1


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


@frozen(kw_only=True, eq=False)
class TestWindows:
    """Windows side by side."""

    tokens: NDArray[Any]
    """Of any integer type."""
    context: int

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.context

    def fetch(self, indices: NDArray[np.intp], *, seed: int, epoch: int) -> tuple[Tensor, Tensor]:
        """Return windows and their next tokens, both int64 [n, context]."""
        return windows(self.tokens, np.asarray(indices, np.int64) * self.context, self.context)


@frozen(kw_only=True, eq=False)
class TrainingWindows:
    """Windows anywhere in the text."""

    tokens: NDArray[Any]
    context: int
    samples: int | None
    """Of an epoch; None: as many as there are side by side."""

    def __len__(self) -> int:
        return self.samples or (len(self.tokens) - 1) // self.context

    def set_apart(self, share: float) -> tuple[TrainingWindows, TestWindows]:
        """Return the windows of the text's beginning, and those of its end side by side, which have no token in common.

        Raises:
            SpecError: a part has no window with its next tokens.
        """
        first = _first_of_end(self.tokens, share, self.context, of="validation")
        held = TestWindows(tokens=self.tokens[first:], context=self.context)
        return attrs.evolve(self, tokens=self.tokens[:first]), held

    def fetch(self, indices: NDArray[np.intp], *, seed: int, epoch: int) -> tuple[Tensor, Tensor]:
        """Return windows and their next tokens, both int64 [n, context]."""
        starts = drawn(seed, epoch, indices) % np.uint64(len(self.tokens) - self.context)
        return windows(self.tokens, starts.astype(np.int64), self.context)


def windows(tokens: NDArray[Any], starts: NDArray[np.int64], context: int) -> tuple[Tensor, Tensor]:
    """Return the windows that begin at `starts`, and the same one position further, both int64 [n, context]."""
    whole = torch.from_numpy(tokens[starts[:, None] + np.arange(context + 1)].astype(np.int64))
    return whole[:, :-1].clone(), whole[:, 1:].clone()


def drawn(seed: int, epoch: int, indices: NDArray[np.intp]) -> NDArray[np.uint64]:
    """Return uniform numbers [n] of 64 bits, each a function of (seed, epoch, index): SplitMix64 of one after the other.

    Steele, Lea and Flood 2014, https://doi.org/10.1145/2660193.2660195, figure 17.
    """
    state = np.zeros(len(indices), np.uint64)
    for part in (np.uint64(seed & _MASK), np.uint64(epoch), np.asarray(indices, np.uint64)):
        state = _mixed(state + part)
    return state


def _mixed(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@frozen(kw_only=True, eq=False)
class Text:
    """An opened text."""

    facts: DataFacts
    train: TrainingWindows
    test: TestWindows


def open_text(options: TextOptions) -> Text:
    """Open files as tokens.

    Raises:
        SpecError: there is no file, one is not UTF-8 where it must be, there is too little text, or `vocabulary` does not fit.
    """
    facts = text_facts(options)
    if isinstance(options, CharactersOptions):
        names, tokens = _characters(options)
        facts = attrs.evolve(facts, classes=len(names), class_names=names)
    elif isinstance(options, TokensOptions):
        facts = attrs.evolve(facts, classes=_number_of_tokens(options))
        tokens = _codec(options).encode_all(b"".join(read_files(options, utf8=True)).decode())
    else:
        tokens = np.frombuffer(b"".join(read_files(options)), np.uint8)
    first = _first_of_end(tokens, options.test_share, options.context, of="test")
    return Text(
        facts=facts,
        train=TrainingWindows(tokens=tokens[:first], context=options.context, samples=options.samples),
        test=TestWindows(tokens=tokens[first:], context=options.context),
    )


def text_facts(options: TextOptions) -> DataFacts:
    """Return the facts of windows and their next tokens; classes are None where only the files tell their number."""
    window = (options.context,)
    return DataFacts(shape=window, dtype="int64", classes=getattr(options, "vocabulary", BYTES), target_shape=window)


def counted(options: Any) -> Any:
    """Return the options with the number of characters or tokens, if it is not given.

    Raises:
        SpecError: there is no file or tokenizer, or one cannot be read.
    """
    if options.vocabulary is not None:
        return options
    if isinstance(options, TokensOptions):
        return attrs.evolve(options, vocabulary=vocabulary_of(options.tokenizer))
    return attrs.evolve(
        options, vocabulary=len(set[str]().union(*(one.decode() for one in read_files(options, utf8=True))))
    )


def _characters(options: CharactersOptions) -> tuple[tuple[str, ...], NDArray[Any]]:
    """Return the characters of a text by their code points' order, and the text as their numbers."""
    points = np.frombuffer(b"".join(read_files(options, utf8=True)).decode().encode("utf-32-le"), np.uint32)
    present = np.bincount(points, minlength=1) > 0
    vocabulary = np.flatnonzero(present)
    if options.vocabulary is not None and len(vocabulary) != options.vocabulary:
        message = f"the text has {len(vocabulary)} different characters, not {options.vocabulary}"
        hint = f"set vocabulary = {len(vocabulary)}, or leave it out"
        raise SpecError(Problem(message=message, hint=hint, path=("vocabulary",)))
    number = (np.cumsum(present) - 1).astype(np.uint16 if len(vocabulary) <= 2**16 else np.uint32)
    return tuple(map(chr, vocabulary.tolist())), number[points]


def _number_of_tokens(options: TokensOptions) -> int:
    own, asked = vocabulary_of(options.tokenizer), options.vocabulary
    if asked is not None and asked < own:
        message = f"{options.tokenizer} has {own} tokens, and vocabulary = {asked}: it is of another network"
        hint = "give the tokenizer.json of the network's own model"
        raise SpecError(Problem(message=message, hint=hint, path=("tokenizer",)))
    return own if asked is None else asked


def _first_of_end(tokens: NDArray[Any], share: float, context: int, *, of: str) -> int:
    """Return the first token of a text's end, which is a share of it.

    Raises:
        SpecError: a part has no window with its next tokens.
    """
    first = len(tokens) - round(share * len(tokens))
    if min(first, len(tokens) - first) <= context:
        message = (
            f"the text has {first} tokens for training and {len(tokens) - first} for the {of}, and a window of "
            f"{context} needs one more than its length in both"
        )
        raise SpecError(Problem(message=message, hint="lower context, or give more text", path=("context",)))
    return first


def read_files(options: TextOptions, *, utf8: bool = False) -> Iterator[bytes]:
    """Yield the contents of `root`, or of its files in the order of their names.

    Raises:
        SpecError: there is no file, one cannot be read, or one is not UTF-8 where it must be.
    """
    for file in files_of(options.root, options.pattern):
        try:
            content = file.read_bytes()
            if utf8:
                content.decode()
        except OSError as error:
            raise _error(f"{file} cannot be read: {error.strerror}", "give files that you may read") from None
        except UnicodeDecodeError as error:
            hint = 'name the text files with pattern, or use data set "text-bytes"'
            raise _error(f"{file} is not text in UTF-8: byte {error.start}", hint) from None
        yield content


def files_of(root: str, pattern: str) -> list[Path]:
    """Return the file, or the files of a folder without hidden ones, in an order that is the same on every machine.

    Raises:
        SpecError: there is none.
    """
    expanded = sysconfig.get_path("stdlib") if root == STDLIB else os.path.expandvars(root)
    folder = Path(expanded).expanduser().absolute()
    if folder.is_file():
        return [folder]
    left_out = _INSTALLED if root == STDLIB else set()
    found = []
    try:
        for file in folder.glob(pattern) if folder.is_dir() else ():
            parts = file.relative_to(folder).parts
            if file.is_file() and not any(part.startswith(".") or part in left_out for part in parts):
                found.append((parts, file))
    except (ValueError, NotImplementedError) as error:
        raise _error(f"pattern {pattern!r} cannot be used: {error}", 'write one as in "**/*.txt"', "pattern") from None
    if not found:
        what = f"no file {pattern!r} in {folder}" if folder.is_dir() else f"no file or folder {folder}"
        raise _error(f"there is {what}", f'give a text file, a folder of them, or root = "{STDLIB}"')
    return [file for _, file in sorted(found)]


def _error(message: str, hint: str, key: str = "root") -> SpecError:
    return SpecError(Problem(message=message, hint=hint, path=(key,)))


class ByteCodec:
    """The bytes of UTF-8."""

    def encode(self, text: str) -> Sequence[int]:
        """Return the bytes of a text."""
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of bytes; what is not UTF-8 becomes U+FFFD."""
        return bytes(tokens).decode(errors="replace")


class CharacterCodec:
    """Characters by their number."""

    def __init__(self, characters: Sequence[str]) -> None:
        self.characters = characters
        self._numbers = {character: number for number, character in enumerate(characters)}

    def encode(self, text: str) -> Sequence[int]:
        """Return the numbers of a text's characters; SpecError: the network has learned some others only."""
        if unknown := sorted(set(text) - self._numbers.keys()):
            hint = f"it has learned only {''.join(self.characters)!r}"
            raise SpecError(f"the network does not know the characters {''.join(unknown)!r}", hint)
        return [self._numbers[character] for character in text]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of characters."""
        return "".join(self.characters[number] for number in tokens)


def codec(options: TextOptions, facts: DataFacts) -> TextCodec:
    """Return the codec of a text; the facts of opened characters name them.

    Raises:
        SpecError: the tokenizer is no longer where it was.
    """
    if isinstance(options, TokensOptions):
        return _codec(options)
    return CharacterCodec(facts.class_names or ()) if isinstance(options, CharactersOptions) else ByteCodec()


def _codec(options: TokensOptions) -> TokenCodec:
    return TokenCodec(tokenizer_of(options.tokenizer))


def read(options: TextOptions, path: Path) -> Tensor:
    """Return a file's windows, int64 [n, context], for predictions; the text at `root` has the numbers of characters.

    Raises:
        SpecError: there is no whole window, or a character is unknown.
    """
    if isinstance(options, TokensOptions):
        tokens: NDArray[Any] = _codec(options).encode_all(path.read_text("utf-8"))
    elif isinstance(options, CharactersOptions):
        tokens = np.array(CharacterCodec(_characters(options)[0]).encode(path.read_text("utf-8")), np.int64)
    else:
        tokens = np.frombuffer(path.read_bytes(), np.uint8)
    whole = len(tokens) // options.context
    if not whole:
        raise SpecError(f"{path} has {len(tokens)} tokens, and the network reads {options.context} at a time")
    return torch.from_numpy(tokens[: whole * options.context].astype(np.int64)).view(whole, options.context)


def _declared(options: type, summary: str, completed: Any = None) -> DataSetDeclaration:
    return DataSetDeclaration(
        summary=summary,
        options=options,
        build=f"{__name__}:open_text",
        facts=text_facts,
        completed=completed,
        read=f"{__name__}:read",
        codec=f"{__name__}:codec",
    )


TEXT_BYTES = _declared(TextOptions, "Any files as bytes: windows, and the byte after each of theirs.")
TEXT_CHARACTERS = _declared(
    CharactersOptions, "Any text as characters: windows, and the character after each of theirs.", counted
)
TEXT_TOKENS = _declared(
    TokensOptions, "Any text as tokens of a tokenizer.json: windows, and the token after each of theirs.", counted
)
