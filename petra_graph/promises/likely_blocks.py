"""Trials for a block of which only its declaration is known: it is given images, rows, tokens or sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from petra_graph.blocks import Shape
from petra_graph.kinds.block import BlockDeclaration
from petra_graph.kinds.plugin import Plugin
from petra_graph.promises.block_trial import Draw, Trial, normal

_TOKENS = 8


def tokens(shape: Shape, generator: torch.Generator) -> Tensor:
    """Draw tokens, int64 in 0 .. 7."""
    return torch.randint(_TOKENS, shape, generator=generator)


_STREAMS: Sequence[tuple[Shape, Draw]] = (
    ((8, 6, 6), normal),
    ((12,), normal),
    ((10, 16), normal),
    ((3, 32, 32), normal),
    ((10,), tokens),
)
"""Images, rows, sequences, images of three channels, tokens."""
_COUNTS: Mapping[str, Sequence[int]] = {"reversible": (2, 1), "buffered": (1, 2, 4), "head": (1, 2)}
"""Streams to try with blocks that read any number."""


def likely_blocks(plugin: Plugin, options: Any, inputs: Sequence[Shape]) -> Sequence[Trial]:
    """Return trials of a block: with these shapes of its streams, or with likely ones where no shapes are given."""
    declaration = cast(BlockDeclaration, plugin.declaration)
    if inputs:
        return [Trial.of(plugin, inputs, options)]
    counts = _COUNTS.get(declaration.kind, (1,)) if declaration.streams is None else (declaration.streams,)
    return [Trial.of(plugin, [shape] * count, options, draw=draw) for count in counts for shape, draw in _STREAMS]
