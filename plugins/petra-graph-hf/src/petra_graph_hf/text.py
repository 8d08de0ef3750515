"""Text as tokens of a tokenizer.json. Windows, split and files are those of petra-graph-transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs
import numpy as np
from attrs import frozen
from numpy.typing import NDArray
from petra_graph_transformers.text import Text, joined, side_by_side, split
from tokenizers import Tokenizer
from torch import Tensor

from petra_graph.plugins import DataFacts, Problem, SpecError
from petra_graph_hf.declared import DocumentsOptions, TokensOptions, token_facts
from petra_graph_hf.tokenizers_on_disk import tokenizer_of, vocabulary_of

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


def text_tokens(options: TokensOptions) -> Text:
    """Open files in UTF-8 as tokens.

    Raises:
        SpecError: there is no file or tokenizer, one cannot be read, there is too little text, or `vocabulary` is too small.
    """
    facts = attrs.evolve(token_facts(options), classes=expect_vocabulary(options))
    tokens = _tokens(joined(options, utf8=True).decode(), tokenizer_of(options.tokenizer))
    return split(options, facts, tokens)


def expect_vocabulary(options: TokensOptions | DocumentsOptions) -> int:
    """Return the number of tokens of the network.

    Raises:
        SpecError: the tokenizer is missing, cannot be read, or has more tokens than `vocabulary` says.
    """
    own, asked = vocabulary_of(options.tokenizer), options.vocabulary
    if asked is not None and asked < own:
        message = f"{options.tokenizer} has {own} tokens, and vocabulary = {asked}: it is of another network"
        hint = "give the tokenizer.json of the network's own model"
        raise SpecError(Problem(message=message, hint=hint, path=("tokenizer",)))
    return own if asked is None else asked


def read_tokens(options: TokensOptions | DocumentsOptions, path: Path) -> Tensor:
    """Return a file's windows, int64 [n, context], for predictions."""
    return side_by_side(_tokens(path.read_text("utf-8"), tokenizer_of(options.tokenizer)), options.context, path)


def codec(options: TokensOptions | DocumentsOptions, _facts: DataFacts) -> TokenCodec:
    """Return the codec of the text.

    Raises:
        SpecError: the tokenizer is no longer where it was.
    """
    return TokenCodec(tokenizer_of(options.tokenizer))


def _tokens(text: str, tokenizer: Tokenizer) -> NDArray[np.int32]:
    parts, begin = [], 0
    while begin < len(text):
        line = text.find("\n", begin + _AT_ONCE)
        end = len(text) if line < 0 else line
        parts.append(np.array(tokenizer.encode(text[begin:end], add_special_tokens=False).ids, np.int32))
        begin = end
    return np.concatenate(parts) if parts else np.empty(0, np.int32)
