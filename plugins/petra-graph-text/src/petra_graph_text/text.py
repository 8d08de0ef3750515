"""Text as data: files to tokens, tokens to windows, and back. Tokens are bytes, characters, or those of a tokenizer on disk.

    test       [0, T) [T, 2T) ...               in order, side by side; the text's last, shorter window is left out
    training   [s, s + T)                       s drawn from (seed, epoch, index) alone, by a hash, not by a generator's state

The targets of a window are the tokens one position further. The text is cut by position: its end is for the test, and what is before it for
the validation if a share of the training is.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import attrs
import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray
from torch import Tensor

from petra_graph.plugins import AtLeast, AtMost, DataFacts, GreaterThan, Length, LessThan, SpecError
from petra_graph_text.tokenizers_on_disk import TokenCodec, tokenizer_of, vocabulary_of

BYTES = 256
"""The vocabulary of bytes."""
STDLIB = "stdlib"
_INSTALLED = {"site-packages", "dist-packages"}
"""Folders inside the standard library's that belong to other packages."""
_MASK = 2**64 - 1


Root = Annotated[
    str,
    'file, or folder of files; ~ and $NAME are expanded; "stdlib": the source of Python\'s standard library',
    Length(at_least=1),
]
Pattern = Annotated[
    str, "files of a folder, in the order of their names; hidden files are left out", Length(at_least=1)
]
Context = Annotated[int, "length of a window, tokens", AtLeast(1)]
TestShare = Annotated[float, "share of the text, from its end, that is kept for the test", GreaterThan(0), LessThan(1)]
Samples = Annotated[
    int | None, "training windows in an epoch, drawn at random; default: as many as fit side by side", AtLeast(1)
]


@frozen(kw_only=True, eq=False)
class TestWindows:
    """Windows side by side."""

    tokens: NDArray[Any]
    """Of any integer type."""
    context: int

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.context

    def fetch(self, indices: NDArray[np.intp], *, seed: int, epoch: int) -> tuple[Tensor, Tensor]:
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

        SpecError: a part has no window with its next tokens.
        """
        first = _first_of_end(self.tokens, share, self.context, of="validation")
        held = TestWindows(tokens=self.tokens[first:], context=self.context)
        return attrs.evolve(self, tokens=self.tokens[:first]), held

    def fetch(self, indices: NDArray[np.intp], *, seed: int, epoch: int) -> tuple[Tensor, Tensor]:
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


class _Text:
    """Windows of tokens; the facts of a class say what its tokens are."""

    def __init__(
        self,
        *,
        root: Root,
        pattern: Pattern = "**/*",
        context: Context = 64,
        test_share: TestShare = 0.1,
        samples: Samples = None,
    ) -> None:
        tokens = self._tokens(root, pattern, context)
        first = _first_of_end(tokens, test_share, context, of="test")
        self.train = TrainingWindows(tokens=tokens[:first], context=context, samples=samples)
        self.test = TestWindows(tokens=tokens[first:], context=context)

    def _tokens(self, root: str, pattern: str, context: int) -> NDArray[Any]:
        """Return the text's tokens; a class whose files tell more sets its facts."""
        raise NotImplementedError


def text_facts(context: int, classes: int | None, names: tuple[str, ...] | None = None) -> DataFacts:
    """Return the facts of windows and their next tokens."""
    window = (context,)
    return DataFacts(shape=window, dtype="int64", classes=classes, target_shape=window, class_names=names)


class TextBytes(_Text):
    """Any files as bytes: windows, and the byte after each of theirs."""

    def _tokens(self, root: str, pattern: str, context: int) -> NDArray[Any]:
        return np.frombuffer(b"".join(read_files(root, pattern)), np.uint8)

    @staticmethod
    def facts(*, context: int) -> DataFacts:
        return text_facts(context, BYTES)

    @staticmethod
    def codec(facts: DataFacts) -> Any:  # noqa: ARG004  the contract's signature
        return ByteCodec()

    @staticmethod
    def read(path: Path, *, context: int) -> Tensor:
        """Return a file's windows, int64 [n, context], for predictions."""
        return _windows_of(path, np.frombuffer(path.read_bytes(), np.uint8), context)


class TextCharacters(_Text):
    """Any text in UTF-8 as characters: windows, and the character after each of theirs."""

    def __init__(
        self,
        *,
        vocabulary: Annotated[
            int | None,
            "number of different characters that must be in the files; default: they are counted. Plans without the files need it",
            AtLeast(2),
            AtMost(0x110000),
        ] = None,
        **options: Any,
    ) -> None:
        self._vocabulary = vocabulary
        super().__init__(**options)

    def _tokens(self, root: str, pattern: str, context: int) -> NDArray[Any]:
        names, tokens = _characters(root, pattern, self._vocabulary)
        self.facts = text_facts(context, len(names), names)  # type: ignore[method-assign, assignment]
        return tokens

    @staticmethod
    def facts(*, context: int, vocabulary: int | None = None) -> DataFacts:
        """Return the facts of the windows; the files tell the number of characters, where it is not given."""
        return text_facts(context, vocabulary)

    @staticmethod
    def completed(*, root: str, pattern: str, vocabulary: int | None = None) -> Mapping[str, Any]:
        if vocabulary is not None:
            return {}
        return {"vocabulary": len(set[str]().union(*(one.decode() for one in read_files(root, pattern, utf8=True))))}

    @staticmethod
    def codec(facts: DataFacts) -> Any:
        """Return the characters, which the facts of an opened text name."""
        return CharacterCodec(facts.class_names or ())

    @staticmethod
    def read(path: Path, *, root: str, pattern: str, vocabulary: int | None = None, context: int) -> Tensor:
        """Return a file's windows, int64 [n, context], for predictions; the text at `root` has the numbers of characters."""
        codec = CharacterCodec(_characters(root, pattern, vocabulary)[0])
        return _windows_of(path, np.array(codec.encode(path.read_text("utf-8")), np.int64), context)


class TextTokens(_Text):
    """Any text in UTF-8 as tokens of a tokenizer.json: windows, and the token after each of theirs."""

    def __init__(
        self,
        *,
        tokenizer: Annotated[Path, "file tokenizer.json of the model, or the folder that has it", Length(at_least=1)],
        vocabulary: Annotated[
            int | None,
            "number of tokens of the network, if that is more than the tokenizer has; default: the tokenizer's",
            AtLeast(2),
        ] = None,
        **options: Any,
    ) -> None:
        self._tokenizer, self._vocabulary = tokenizer, vocabulary
        super().__init__(**options)

    def _tokens(self, root: str, pattern: str, context: int) -> NDArray[Any]:
        own = vocabulary_of(self._tokenizer)
        if self._vocabulary is not None and self._vocabulary < own:
            found = f"{self._tokenizer} has {own} tokens, and vocabulary = {self._vocabulary}"
            raise SpecError(f"{found}: it is of another network", "give that of the network's model", ("tokenizer",))
        self.facts = text_facts(context, self._vocabulary or own)  # type: ignore[method-assign, assignment]
        return _codec(self._tokenizer).encode_all(b"".join(read_files(root, pattern, utf8=True)).decode())

    @staticmethod
    def facts(*, context: int, vocabulary: int | None = None) -> DataFacts:
        """Return the facts of the windows; the tokenizer tells the number of tokens, where it is not given."""
        return text_facts(context, vocabulary)

    @staticmethod
    def completed(*, tokenizer: Path, vocabulary: int | None = None) -> Mapping[str, Any]:
        return {} if vocabulary is not None else {"vocabulary": vocabulary_of(tokenizer)}

    @staticmethod
    def codec(facts: DataFacts, *, tokenizer: Path) -> Any:  # noqa: ARG004  the contract's signature
        """Return the tokenizer; SpecError: it is no longer where it was."""
        return _codec(tokenizer)

    @staticmethod
    def read(path: Path, *, tokenizer: Path, context: int) -> Tensor:
        """Return a file's windows, int64 [n, context], for predictions."""
        return _windows_of(path, _codec(tokenizer).encode_all(path.read_text("utf-8")), context)


def _codec(tokenizer: Path) -> TokenCodec:
    return TokenCodec(tokenizer_of(tokenizer))


def _windows_of(path: Path, tokens: NDArray[Any], context: int) -> Tensor:
    whole = len(tokens) // context
    if not whole:
        raise SpecError(f"{path} has {len(tokens)} tokens, and the network reads {context} at a time")
    return torch.from_numpy(tokens[: whole * context].astype(np.int64)).view(whole, context)


def _characters(root: str, pattern: str, vocabulary: int | None) -> tuple[tuple[str, ...], NDArray[Any]]:
    """Return the characters of a text by their code points' order, and the text as their numbers."""
    points = np.frombuffer(b"".join(read_files(root, pattern, utf8=True)).decode().encode("utf-32-le"), np.uint32)
    present = np.bincount(points, minlength=1) > 0
    known = np.flatnonzero(present)
    if vocabulary is not None and len(known) != vocabulary:
        message = f"the text has {len(known)} different characters, not {vocabulary}"
        raise SpecError(message, f"set vocabulary = {len(known)}, or leave it out", ("vocabulary",))
    number = (np.cumsum(present) - 1).astype(np.uint16 if len(known) <= 2**16 else np.uint32)
    return tuple(map(chr, known.tolist())), number[points]


def _first_of_end(tokens: NDArray[Any], share: float, context: int, *, of: str) -> int:
    """Return the first token of a text's end, which is a share of it; SpecError: a part has no window with its next tokens."""
    first = len(tokens) - round(share * len(tokens))
    if min(first, len(tokens) - first) <= context:
        message = (
            f"the text has {first} tokens for training and {len(tokens) - first} for the {of}, and a window of "
            f"{context} needs one more than its length in both"
        )
        path = ("context",) if of == "test" else ()  # else that of the share
        raise SpecError(message, "lower context, or give more text", path)
    return first


def read_files(root: str, pattern: str, *, utf8: bool = False) -> Iterator[bytes]:
    """Yield the contents of `root`, or of its files in the order of their names.

    SpecError: there is no file, one cannot be read, or one is not UTF-8 where it must be.
    """
    for file in files_of(root, pattern):
        try:
            content = file.read_bytes()
            if utf8:
                content.decode()
        except OSError as error:
            raise SpecError(f"{file} cannot be read: {error.strerror}", path=("root",)) from None
        except UnicodeDecodeError as error:
            hint = 'name the text files with pattern, or use data set "text-bytes"'
            raise SpecError(f"{file} is not text in UTF-8: byte {error.start}", hint, ("root",)) from None
        yield content


def files_of(root: str, pattern: str) -> list[Path]:
    """Return the file, or the files of a folder without hidden ones, in an order that is the same on every machine; SpecError: no file matches."""
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
        message, hint = f"pattern {pattern!r} cannot be used: {error}", 'write one as in "**/*.txt"'
        raise SpecError(message, hint, ("pattern",)) from None
    if not found:
        what = f"no file {pattern!r} in {folder}" if folder.is_dir() else f"no file or folder {folder}"
        raise SpecError(f"there is {what}", f'give a text file, a folder of them, or root = "{STDLIB}"', ("root",))
    return [file for _, file in sorted(found)]


class ByteCodec:
    """The bytes of UTF-8."""

    def encode(self, text: str) -> Sequence[int]:
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
        return "".join(self.characters[number] for number in tokens)
