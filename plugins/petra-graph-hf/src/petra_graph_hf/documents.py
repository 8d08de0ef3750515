"""`hf-text`: documents of a data set as windows of tokens, and the token after each of theirs.

    packed        d1 d1 d1 <end> d2 d2 | d2 d2 d2 d2 <end> d3 | ...       documents one after another, cut into windows
    not packed    d1 d1 d1 <end> <end> <end> | d2 d2 d2 d2 d2 d2 | ...    a document a window: cut off, or filled up at its end

A target of -100 is passed over by losses and metrics: tokens of a prompt, and what fills up a window. Windows without any other target
are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from petra_graph.plugins import DataFacts, Problem, SpecError
from petra_graph_hf.declared import DocumentsOptions, token_facts
from petra_graph_hf.sources import column_of, open_source
from petra_graph_hf.text import expect_vocabulary
from petra_graph_hf.tokenizers_on_disk import end_token, tokenizer_of

_PASSED_OVER = -100
Document = tuple[list[int], int]
"""Tokens with the end of the text, and how many of them are of the prompt."""


@frozen(kw_only=True, eq=False)
class Windows:
    """Windows in their order: both [N, context]."""

    tokens: NDArray[np.int32]
    targets: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def plain(self) -> Windows:
        """Itself: nothing is augmented."""
        return self

    def fetch(self, indices: NDArray[np.intp], *, seed: int, epoch: int) -> tuple[Tensor, Tensor]:
        """Return windows and their targets, both int64 [n, context]."""
        return _rows(self.tokens, indices), self.fetch_targets(indices)

    def fetch_targets(self, indices: NDArray[np.intp]) -> Tensor:
        return _rows(self.targets, indices)


class PackedWindows(Windows):
    """Windows of a stream, of which neighbours may have a document in common."""

    def set_apart(self, share: float) -> tuple[Windows, Windows]:
        """Return the windows of the stream's beginning, and those of its end.

        Raises:
            SpecError: a part has no window.
        """
        first = len(self) - round(share * len(self))
        if not 0 < first < len(self):
            raise _error("context", f"a share of {share:g} of {len(self)} windows leaves a part empty", "lower context")
        parts = slice(first), slice(first, None)
        train, held = (PackedWindows(tokens=self.tokens[part], targets=self.targets[part]) for part in parts)
        return train, held


def _rows(values: NDArray[np.int32], indices: NDArray[np.intp]) -> Tensor:
    return torch.from_numpy(values[indices].astype(np.int64))


@frozen(kw_only=True, eq=False)
class Documents:
    """The opened documents."""

    facts: DataFacts
    train: Windows
    test: Windows
    validation: Windows | None = None


def hf_text(options: DocumentsOptions) -> Documents:
    """Open the documents as tokens; they are held in memory, 8 bytes a token.

    Raises:
        SpecError: as `open_source`; or the tokenizer does not fit, a row has no text, or there is no window.
    """
    classes = expect_vocabulary(options)
    tokenizer = tokenizer_of(options.tokenizer)
    end = end_token(options.tokenizer, options.end_of_text)
    splits = {
        part: _windows(_documents(rows, part, options, tokenizer, end), options, end, part)
        for part, rows in open_source(options).each()
    }
    return Documents(facts=attrs.evolve(token_facts(options), classes=classes), **splits)


def _documents(rows: Any, part: str, options: DocumentsOptions, tokenizer: Tokenizer, end: int) -> Iterator[Document]:
    texts = column_of(rows, "column", options.column)
    prompts: Sequence[Any] = ("",) * len(rows) if options.prompt is None else column_of(rows, "prompt", options.prompt)
    for number, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
        for key, value in (("prompt", prompt), ("column", text)):
            if not isinstance(value, str):
                message = f"row {number} of the split for {part} has {type(value).__name__} in the column {getattr(options, key)!r}, not a text"
                raise _error(key, message, "name a column of texts, or leave such rows out")
        before, behind = (tokenizer.encode(one, add_special_tokens=False).ids for one in (prompt, text))
        yield [*before, *behind, end], len(before)


def _windows(documents: Iterator[Document], options: DocumentsOptions, end: int, part: str) -> Windows:
    whole = _packed if options.packed else _apart
    tokens, targets = whole(documents, options.context, end)
    counted = (targets != _PASSED_OVER).any(1)
    if not counted.any():
        why = "and no prompt may fill them" if options.prompt else "so there is too little text"
        message = f"the rows for {part} have no window of {options.context} tokens with a target: it takes one token more than it is long, {why}"
        raise _error("context", message, "lower context, or give more text")
    made = PackedWindows if options.packed else Windows
    return made(tokens=tokens[counted], targets=targets[counted])


def _packed(documents: Iterator[Document], context: int, _end: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    tokens, targets = [np.empty(0, np.int32)], [np.empty(0, np.int32)]
    for ids, prompt in documents:
        tokens.append(np.array(ids, np.int32))
        targets.append(_targets(tokens[-1], prompt))
    stream, aims = np.concatenate(tokens), np.concatenate(targets)
    count = max(0, len(stream) - 1) // context
    shape = count, context
    return stream[: count * context].reshape(shape), aims[1 : count * context + 1].reshape(shape)


def _apart(documents: Iterator[Document], context: int, end: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    tokens, targets = [np.empty((0, context), np.int32)], [np.empty((0, context), np.int32)]
    for ids, prompt in documents:
        whole = np.full(context + 1, end, np.int32)
        aims = np.full(context + 1, _PASSED_OVER, np.int32)
        there = min(len(ids), context + 1)
        whole[:there] = ids[:there]
        aims[:there] = _targets(whole[:there], prompt)
        tokens.append(whole[np.newaxis, :-1])
        targets.append(aims[np.newaxis, 1:])
    return np.concatenate(tokens), np.concatenate(targets)


def _targets(tokens: NDArray[np.int32], prompt: int) -> NDArray[np.int32]:
    """Return what a document's tokens are as targets."""
    targets = tokens.copy()
    targets[:prompt] = _PASSED_OVER
    return targets


def _error(key: str, message: str, hint: str) -> SpecError:
    return SpecError(Problem(message=message, hint=hint, path=(key,)))
