"""Trials for a block of which only its declaration is known: it is given images, rows, tokens or sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from petra_graph.blocks import Shape
from petra_graph.kinds.block import BlockDeclaration
from petra_graph.kinds.plugin import Plugin
from petra_graph_conformance.blocks.block_trial import Draw, Tokens, Trial, normal

_TOKENS, _FEW = Tokens(8), Tokens(2)
_STREAMS: Sequence[tuple[Shape, Draw]] = (
    ((8, 6, 6), normal),
    ((12,), normal),
    ((10, 16), normal),
    ((3, 32, 32), normal),
    ((10,), _TOKENS),
    ((8, 6, 10), normal),
    ((3, 32, 48), normal),
    ((10,), _FEW),
    ((4,), _FEW),
    ((1, 28, 28), normal),
    ((4, 37), normal),
    ((64, 8, 8), normal),
    ((16, 64), normal),
    ((4, 4, 6, 6), normal),
    ((1,), normal),
)
"""Images, rows, sequences, images of three channels, tokens; then others: wide, of few tokens, of one channel or many, volumes."""
_COUNTS: Mapping[str, Sequence[int]] = {"reversible": (2, 1), "buffered": (1, 2, 4), "head": (1, 2)}
"""Streams to try with blocks that read any number."""


def likely_blocks(plugin: Plugin, options: Any, given: Mapping[str, Any]) -> Sequence[Trial]:
    """Return trials of a block: with these shapes of its streams, or with likely ones where none are given.

    Streams are tokens where the size of their vocabulary is given.
    """
    declaration = cast(BlockDeclaration, plugin.declaration)
    draw = Tokens(given["tokens"]) if "tokens" in given else None
    if "inputs" in given:
        return [Trial.of(plugin, given["inputs"], options, draw=draw or normal)]
    counts = _COUNTS.get(declaration.kind, (1,)) if declaration.streams is None else (declaration.streams,)
    likely = [(shape, draw or one) for shape, one in _STREAMS if draw is None or isinstance(one, Tokens)]
    return [Trial.of(plugin, [shape] * count, options, draw=one) for count in counts for shape, one in likely]
