"""Couplings of more than two streams.

    ring     (x_1, ..., x_m) -> (g x_m + F(x_1, ..., x_{m-1}), x_1, ..., x_{m-1})
    column   y_l = g_l x_l + F_l(y_{l-1}, x_{l+1})       for the levels l = 1, ..., m, from below

Both are the reversible multi-level columns of Cai et al. 2023, https://arxiv.org/abs/2212.11696: the ring is its recurrence,
x_t = F_t(x_{t-1}, ..., x_{t-m+1}) + g x_{t-m}; the column takes m steps of it at once, where F_t reads the two streams that
RevCol's fusion reads: the level below in the same column, and the level above in the column before.

Rounding: the inverse divides by g, so with |g| = 1 an error does not grow; each stream is undone once in m ring blocks.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from petra_graph.blocks.block_kinds import Shape, Streams, Undo, Undone
from petra_graph.blocks.couplings.additive import Additive, undo_sum
from petra_graph.blocks.couplings.coupling import Coupling, added, evaluate, residual_value, scaled
from petra_graph.blocks.randomness import rng_scope


class RingCoupling(Additive):
    """The ring of `coupled` streams of one shape, with g = 1: write `residual`, which reads all but the last.

    With two streams it is the swap form of `AdditiveCoupling`.
    """

    streams = 3
    coupled: ClassVar[int] = 3
    """Streams in the ring; `streams` counts the context as well."""

    @abstractmethod
    def residual(self, x: Tensor, *others: Any, **_: Any) -> Tensor:
        """Return F(x_1, ..., x_{m-1}, *context), of x_1's shape."""

    def forward(self, *streams: Tensor) -> Streams:
        """Return (x_m + F, x_1, ..., x_{m-1})."""
        *read, last = streams[: self.coupled]
        context = streams[self.coupled :]
        return last + added(self.residual, *read, *context), *read, *context

    def inverse(self, *outputs: Tensor) -> Streams:
        """Return (x_1, ..., x_m)."""
        y, *read = outputs[: self.coupled]
        context = outputs[self.coupled :]
        return *read, y - added(self.residual, *read, *context), *context

    def reverse_steps(self) -> Sequence[Undo]:
        """Return the one step of F."""
        return (partial(undo_sum, partial(added, self.residual), 0, self.coupled - 1),)


class ColumnCoupling(Coupling):
    """A column of levels, each of its own shape: write `level`; g_l is `scale(l)`.

    The streams are the levels of the column before, from the finest (l = 0) up, then the context: RevCol's stem, which
    all columns read. `coupled` is the number of levels.
    """

    functions = ("level",)
    streams = 3
    coupled: ClassVar[int] = 3

    def __init__(self, inputs: Sequence[Shape], options: Any) -> None:
        super().__init__(inputs, options)
        if len(inputs) and len(inputs) < self.coupled:
            raise ValueError(f"a column of {self.coupled} levels reads a stream for each (got {len(inputs)})")

    @abstractmethod
    def level(self, index: int, below: Tensor | None, above: Tensor | None, *context: Any, **_: Any) -> Tensor:
        """Return F_l, of the shape of level `index`.

        Args:
            index: l, from 0.
            below: the level below in this column; None at l = 0.
            above: the level above in the column before; None at the last level.
            context: the further streams.
        """

    def scale(self, index: int) -> Tensor | float:
        """Return g_l, zero nowhere: a number, or a parameter that broadcasts against the level, [c, 1, 1]."""
        return 1.0

    def forward(self, *streams: Tensor) -> Streams:
        """Return the column's levels."""
        levels, context = streams[: self.coupled], streams[self.coupled :]
        column: list[Tensor] = []
        for index, stream in enumerate(levels):
            neighbours = _neighbours(index, column, levels)
            column.append(scaled(stream, self.scale(index)) + _level(self, index, stream, *neighbours, *context))
        return *column, *context

    def inverse(self, *outputs: Tensor) -> Streams:
        """Return the levels of the column before, found from the top down."""
        column, context = outputs[: self.coupled], outputs[self.coupled :]
        levels = list(column)
        for index in reversed(range(self.coupled)):
            value = _level(self, index, column[index], *_neighbours(index, column, levels), *context)
            levels[index] = (column[index] - value) / self.scale(index)
        return *levels, *context

    def reverse_steps(self) -> Sequence[Undo]:
        """Return a step for each level, from the top down."""
        return [partial(_level_undone, self, index) for index in reversed(range(self.coupled))]


def _level_undone(block: ColumnCoupling, index: int, outputs: Streams) -> Undone:
    """Undo a level: the streams above it are those of the column before, and the streams below it are this column's."""
    levels, context = outputs[: block.coupled], outputs[block.coupled :]
    below, above = _neighbours(index, levels, levels)
    read = [stream for stream in (below, above) if stream is not None]
    evaluation = evaluate(partial(_level_of_read, block, index, levels[index]), *read, *context)
    with torch.no_grad():
        level = (levels[index] - evaluation.values[0]) / block.scale(index)

    def vjp(gradients: Streams) -> Streams:
        d_levels, passed = list(gradients[: block.coupled]), gradients[block.coupled :]
        neighbours = [at for at, stream in ((index - 1, below), (index + 1, above)) if stream is not None]
        found = evaluation.vjp((d_levels[index],), (*(d_levels[at] for at in neighbours), *passed))
        d_levels[index] = _scaled_vjp(partial(block.scale, index), level, d_levels[index])
        for at, gradient in zip(neighbours, found, strict=False):
            d_levels[at] = gradient
        return *d_levels, *found[len(neighbours) :]

    return Undone(lambda: (*levels[:index], level, *levels[index + 1 :], *context), vjp)


def _neighbours(index: int, column: Sequence[Tensor], before: Sequence[Tensor]) -> tuple[Tensor | None, Tensor | None]:
    """Return the level below in the same column, and the level above in the column before."""
    return column[index - 1] if index else None, before[index + 1] if index + 1 < len(before) else None


def _level(block: ColumnCoupling, index: int, stream: Tensor, *arguments: Any) -> Tensor:
    with rng_scope(f"level {index}"):
        return residual_value(lambda _, *read: block.level(index, *read), stream, *arguments)


def _level_of_read(block: ColumnCoupling, index: int, stream: Tensor, *read: Tensor) -> Tensor:
    """Evaluate a level from the neighbours that there are."""
    given = iter(read)
    below = next(given) if index else None
    above = next(given) if index + 1 < block.coupled else None
    return _level(block, index, stream, below, above, *given)


def _scaled_vjp(scale: Callable[[], Tensor | float], stream: Tensor, gradient: Tensor) -> Tensor:
    """Differentiate stream * scale(): return the stream's gradient; a parameter's is added to its own."""
    if not isinstance(scale(), Tensor):
        return scaled(gradient, scale())
    return evaluate(lambda x: x * scale(), stream).vjp((gradient,))[0]
