"""Text to tokens and back: bytes, or characters by their number in a vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from attrs import field, frozen

from petra_graph.plugins import DataFacts, SpecError
from petra_graph_transformers.declared import CharactersOptions, TextOptions


@frozen
class ByteCodec:
    """The bytes of UTF-8."""

    def encode(self, text: str) -> Sequence[int]:
        """Return the bytes of a text."""
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of bytes; what is not UTF-8 becomes U+FFFD."""
        return bytes(tokens).decode(errors="replace")


@frozen(slots=False)
class CharacterCodec:
    """Characters by their number."""

    characters: tuple[str, ...] = field(kw_only=True)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {character: number for number, character in enumerate(self.characters)}

    def encode(self, text: str) -> Sequence[int]:
        """Return the numbers of a text's characters.

        Raises:
            SpecError: it has some that are not in the vocabulary.
        """
        unknown = sorted(set(text) - self._numbers.keys())
        if unknown:
            raise SpecError(
                f"the network does not know the characters {''.join(unknown)!r}",
                f"it has learned only {''.join(self.characters)!r}",
            )
        return [self._numbers[character] for character in text]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of characters."""
        return "".join(self.characters[number] for number in tokens)


def of_bytes(_options: TextOptions, _facts: DataFacts) -> ByteCodec:
    """Return the codec of `text-bytes`."""
    return ByteCodec()


def of_characters(_options: CharactersOptions, facts: DataFacts) -> CharacterCodec:
    """Return the codec of `text-characters`, whose opened facts name the characters."""
    return CharacterCodec(characters=facts.class_names or ())
