"""Text to tokens and back: bytes, or characters by their number in a vocabulary."""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

import torch
from attrs import field, frozen
from torch import Tensor

from petra_graph.plugins import DataFacts, Problem, SpecError
from petra_graph_transformers.declared import BYTES


class Codec(Protocol):
    """What a token stands for."""

    @property
    def vocabulary(self) -> int:
        """The number of different tokens."""

    @property
    def names(self) -> tuple[str, ...] | None:
        """What each token is called; None: by its number."""

    def encode(self, text: str) -> Tensor:
        """Return the tokens of a text, int64 [t].

        Raises:
            SpecError: it has some that are not in the vocabulary.
        """

    def decode(self, tokens: Tensor) -> str:
        """Return the text of tokens [t]."""


@frozen
class ByteCodec:
    """The bytes of UTF-8."""

    vocabulary: int = BYTES
    names: None = None

    def encode(self, text: str) -> Tensor:
        """Return the bytes of a text, int64 [t]."""
        return torch.tensor(list(text.encode()), dtype=torch.int64)

    def decode(self, tokens: Tensor) -> str:
        """Return the text of bytes [t]; what is not UTF-8 becomes U+FFFD."""
        return bytes(tokens.tolist()).decode(errors="replace")


@frozen(slots=False)
class CharacterCodec:
    """Characters by their number."""

    characters: tuple[str, ...] = field(kw_only=True)

    @property
    def vocabulary(self) -> int:
        """The number of characters."""
        return len(self.characters)

    @property
    def names(self) -> tuple[str, ...]:
        """The characters."""
        return self.characters

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {character: number for number, character in enumerate(self.characters)}

    def encode(self, text: str) -> Tensor:
        """Return the characters of a text, int64 [t].

        Raises:
            SpecError: it has some that are not in the vocabulary.
        """
        unknown = sorted(set(text) - self._numbers.keys())
        if unknown:
            raise SpecError(
                Problem(
                    message=f"the network does not know the characters {''.join(unknown)!r}",
                    hint=f"it has learned these alone: {''.join(self.characters)!r}",
                )
            )
        return torch.tensor([self._numbers[character] for character in text], dtype=torch.int64)

    def decode(self, tokens: Tensor) -> str:
        """Return the text of characters [t]."""
        return "".join(self.characters[number] for number in tokens.tolist())


def codec_of(facts: DataFacts) -> Codec:
    """Return the codec of a data set's samples, of which a run's directory tells as well.

    Raises:
        SpecError: they are no text.
    """
    if facts.dtype == "int64" and facts.target_shape == facts.shape and len(facts.shape) == 1:
        if facts.class_names is not None and all(len(name) == 1 for name in facts.class_names):
            return CharacterCodec(characters=facts.class_names)
        if facts.class_names is None and facts.classes == BYTES:
            return ByteCodec()
    raise SpecError(
        "the run was not trained on text",
        'train on the data set "text-characters" or "text-bytes" of petra-graph-transformers',
    )
