"""Text as data: files to tokens, tokens to windows.

    test       [0, T) [T, 2T) ...               in order, side by side; the text's last, shorter window is left out
    training   [s, s + T)                       s drawn from (seed, epoch, index) alone, by a hash, not by a generator's state

The targets of a window are the tokens one position further. The text is cut by position: its end is for the test, and what is before it for
the validation if a share of the training is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray
from torch import Tensor

from petra_graph.plugins import DataFacts, Problem, SpecError
from petra_graph_transformers.codec import CharacterCodec
from petra_graph_transformers.declared import CharactersOptions, TextOptions, text_facts
from petra_graph_transformers.files import read_files

_MASK = 2**64 - 1


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
        return attrs.evolve(self, tokens=self.tokens[:first]), TestWindows(
            tokens=self.tokens[first:], context=self.context
        )

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


def text_bytes(options: TextOptions) -> Text:
    """Open files as bytes.

    Raises:
        SpecError: there is no file, or too little text.
    """
    return split(options, text_facts(options), np.frombuffer(joined(options), np.uint8))


def text_characters(options: CharactersOptions) -> Text:
    """Open files in UTF-8 as characters, which are numbered by their code points' order.

    Raises:
        SpecError: there is no file, one is not UTF-8, there is too little text, or it has not as many characters as `vocabulary` says.
    """
    characters, tokens = _characters(options)
    facts = attrs.evolve(text_facts(options), classes=len(characters), class_names=characters)
    return split(options, facts, tokens)


def read_bytes(options: TextOptions, path: Path) -> Tensor:
    """Return a file's windows, int64 [n, context], for predictions."""
    return side_by_side(np.frombuffer(path.read_bytes(), np.uint8), options.context, path)


def read_characters(options: CharactersOptions, path: Path) -> Tensor:
    """Return a file's windows, int64 [n, context], for predictions; the text at `root` has the numbers of characters."""
    characters, _ = _characters(options)
    tokens = CharacterCodec(characters=characters).encode(path.read_text("utf-8"))
    return side_by_side(np.array(tokens, np.int64), options.context, path)


def _characters(options: CharactersOptions) -> tuple[tuple[str, ...], NDArray[Any]]:
    points = np.frombuffer(joined(options, utf8=True).decode().encode("utf-32-le"), np.uint32)
    present = np.bincount(points, minlength=1) > 0
    vocabulary = np.flatnonzero(present)
    if options.vocabulary is not None and len(vocabulary) != options.vocabulary:
        message = f"the text has {len(vocabulary)} different characters, not {options.vocabulary}"
        raise SpecError(
            Problem(message=message, hint=f"set vocabulary = {len(vocabulary)}, or leave it out", path=("vocabulary",))
        )
    number = (np.cumsum(present) - 1).astype(np.uint16 if len(vocabulary) <= 2**16 else np.uint32)
    return tuple(map(chr, vocabulary.tolist())), number[points]


def joined(options: TextOptions, *, utf8: bool = False) -> bytes:
    """Return the content of all files; errors as `read_files`."""
    return b"".join(read_files(options.root, options.pattern, utf8=utf8))


def split(options: TextOptions, facts: DataFacts, tokens: NDArray[Any]) -> Text:
    """Return a text, whose end is for the test.

    Args:
        options: the length of windows, their number, and the share of the test.
        facts: of the windows.
        tokens: of the whole text, of any integer type.

    Raises:
        SpecError: a part has no window with its next tokens.
    """
    first = _first_of_end(tokens, options.test_share, options.context, of="test")
    return Text(
        facts=facts,
        train=TrainingWindows(tokens=tokens[:first], context=options.context, samples=options.samples),
        test=TestWindows(tokens=tokens[first:], context=options.context),
    )


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


def side_by_side(tokens: NDArray[Any], context: int, path: Path) -> Tensor:
    """Return the windows of a file's tokens, int64 [n, context]; a last, shorter one is left out.

    Raises:
        SpecError: there is none.
    """
    whole = len(tokens) // context
    if not whole:
        raise SpecError(f"{path} has {len(tokens)} tokens, and the network reads {context} at a time")
    return torch.from_numpy(tokens[: whole * context].astype(np.int64)).view(whole, context)
