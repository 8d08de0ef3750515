"""A tokenizer.json, read by the library `tokenizers`: text to tokens and back, and how many bytes a token is."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from petra_graph.plugins import SpecError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FILE, _PATH = "tokenizer.json", ("tokenizer",)
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "▁"
"""A space in the tokens of SentencePiece."""
_AT_ONCE = 2**20
"""Characters that are made tokens together, up to the end of a line: a tokenizer takes many times the memory of its text."""


@frozen
class TokenCodec:
    """Text as a tokenizer's tokens, without those that a model's template adds."""

    tokenizer: Tokenizer

    def encode(self, text: str) -> Sequence[int]:
        """Return the tokens of a text; special tokens that it writes out are single tokens."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, special ones written out; what is not UTF-8 becomes U+FFFD, and a number without a token nothing."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=False))

    def encode_all(self, text: str) -> NDArray[np.int32]:
        parts, begin = [np.empty(0, np.int32)], 0
        while begin < len(text):
            line = text.find("\n", begin + _AT_ONCE)
            end = len(text) if line < 0 else line
            parts.append(np.array(self.encode(text[begin:end]), np.int32))
            begin = end
        return np.concatenate(parts)


def file_of(name: Path) -> Path:
    """Return the file that an option names, itself or by its folder; SpecError: the file is missing."""
    path = name.expanduser()
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise SpecError(f"there is no file {file}", "give the tokenizer.json of the model", _PATH)
    return file


def tokenizer_of(name: Path) -> Tokenizer:
    """Open a tokenizer.json; SpecError: the file is missing, or cannot be read."""
    from tokenizers import Tokenizer

    file = file_of(name)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001  the library raises no narrower class
        hint = "give the tokenizer.json of the model, as transformers saves it"
        raise SpecError(f"{file} is no tokenizer: {error}", hint, _PATH) from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def vocabulary_of(name: Path) -> int:
    """Return the number of tokens: one more than the largest, since a vocabulary may have gaps; errors as `tokenizer_of`."""
    return max(tokenizer_of(name).get_vocab(with_added_tokens=True).values(), default=0) + 1


def bytes_of_tokens(name: Path) -> list[int]:
    """Return how many bytes of text each token is, by its number; 0 for numbers without a token.

    A token of a byte-level tokenizer is written in an alphabet with one character a byte; other tokenizers write characters, a
    space as U+2581, and single bytes as <0x0A>.

    SpecError: as `tokenizer_of`; or tokens are neither.
    """
    tokenizer = tokenizer_of(name)
    decoder = str(json.loads(tokenizer.to_str()).get("decoder"))
    byte_level = "ByteLevel" in decoder
    if not byte_level and _SPACE not in decoder:
        hint = "use perplexity, or a model with byte-level or SentencePiece tokens"
        raise SpecError(f"{file_of(name)} does not say how many bytes a token is", hint, _PATH)
    added = {number: str(token.content) for number, token in tokenizer.get_added_tokens_decoder().items()}
    sizes = [0] * vocabulary_of(name)
    for token, number in tokenizer.get_vocab(with_added_tokens=True).items():
        if number in added:
            sizes[number] = len(added[number].encode())
        elif byte_level:
            sizes[number] = len(token)
        else:
            sizes[number] = 1 if _BYTE.fullmatch(token) else len(token.replace(_SPACE, " ").encode())
    return sizes
