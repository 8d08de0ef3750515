"""Blocks of other classes as steps of a reversible chain, or as readers of its first stream.

Decision: a block around another one shares its registers of submodules, parameters and buffers, so that a parameter has the name that it has in
the block itself, and files of weights fit. A subclass of both would share names of methods, too: many networks have a module `residual`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self, cast

from torch import Tensor

from petra_graph.blocks import (
    Block,
    Buffered,
    DualResidualEntry,
    DualResidualStep,
    Head,
    MidpointEntry,
    MidpointStep,
    Shape,
    Streams,
)
from petra_graph.blocks.couplings.residual_chain import COEFFICIENTS, coefficient

Coupling = Literal["dual-residual", "midpoint"]


class _Around(Block):
    """A block of one stream, in the place of another block."""

    def __init__(self, inner: Block, inputs: Sequence[Shape]) -> None:
        super().__init__(inputs, inner.options)
        self.__dict__["inner"] = inner  # not as a submodule
        for register in ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set"):
            self.__dict__[register] = getattr(inner, register)
        self.tables, self.shared_parameters = inner.tables, inner.shared_parameters
        self.__dict__.update(undecayed=inner.undecayed, of_network=inner.of_network)

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the block itself, which may do more than torch does."""
        self.__dict__["inner"].train(mode)
        self.training = mode
        return self

    def residual(self, x: Tensor) -> Tensor:
        """Return the block's value."""
        (value,) = self.__dict__["inner"](x)
        return value  # type: ignore[no-any-return]


class _MidpointEntry(_Around, MidpointEntry): ...


class _MidpointStep(_Around, MidpointStep): ...


class _DualResidualEntry(_Around, DualResidualEntry): ...


class _DualResidualStep(_Around, DualResidualStep): ...


class _Reading(_Around):
    reads: Sequence[int]

    def forward(self, *streams: Tensor) -> Streams:
        """Return what the block makes of the streams that it reads."""
        returned: Streams = self.__dict__["inner"](*(streams[at] for at in self.reads))
        return returned


class _ReadingBuffered(_Reading, Buffered): ...


class _ReadingHead(_Reading, Head):
    def returned(self, streams: Streams) -> Any:
        return cast(Head, self.__dict__["inner"]).returned(streams)


def step_around(
    inner: Block, inputs: Sequence[Shape], coupling: Coupling, *, first: bool, alpha: float, beta: float
) -> Block:
    """Return a block as a step of a reversible chain.

    Args:
        inner: reads and returns one stream of one shape.
        inputs: of the step: one shape if it is the first, otherwise two.

    Raises:
        ValueError: the block has a parameter with the name of a coefficient.
    """
    if coupling == "midpoint":
        return (_MidpointEntry if first else _MidpointStep)(inner, inputs)
    if taken := set(COEFFICIENTS) & {name for name, _ in inner.named_parameters(recurse=False)}:
        raise ValueError(f"it has a parameter {min(taken)!r}, as dual residual blocks have; use the coupling midpoint")
    made = (_DualResidualEntry if first else _DualResidualStep)(inner, inputs)
    made.alpha = coefficient(alpha)
    if not first:
        made.beta = coefficient(beta)
    return made


def reader_around(inner: Block, inputs: Sequence[Shape], reads: Sequence[int]) -> Block:
    """Return a block that reads some of its input streams."""
    made = (_ReadingHead if isinstance(inner, Head) else _ReadingBuffered)(inner, inputs)
    made.reads = tuple(reads)
    return made
