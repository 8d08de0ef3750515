"""The bytes that a stage holds, by part: values that planner and measurement share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

import attrs
from attrs import frozen

Part = Literal[
    "parameters", "gradients", "optimizer", "input_buffer", "parameter_buffer", "graphs", "working", "channels"
]
PARTS: tuple[Part, ...] = get_args(Part)


@frozen(kw_only=True)
class StageBytes:
    """The memory of a stage, or of a device with all its stages, at its peak; the parts add up to the total."""

    parameters: int = 0
    """With running statistics."""
    gradients: int = 0
    """From the end of a window's first backward to its update; while that backward makes them, they are `working`."""
    optimizer: int = 0
    input_buffer: int = 0
    """Inputs that wait for their backward; those of the first stage in the data set's own type."""
    parameter_buffer: int = 0
    """Copies of older parameters, or those for a delay: predicted or estimated ones."""
    graphs: int = 0
    """Stashed graphs, with their inputs and outputs."""
    working: int = 0
    """Tensors of the operation that runs: received, made, and not yet sent; samples; targets on their way to a head on
    the same device; in the head, gradients that wait for the backward."""
    channels: int = 0
    """Messages sent and not yet received; a tensor that is also in a buffer or a graph counts there."""

    @property
    def total(self) -> int:
        return sum(getattr(self, part) for part in PARTS)


@frozen(kw_only=True)
class PaperBytes:
    """The bytes that table 3 of the PETRA paper counts, in its own way."""

    model: int
    """Parameters, running statistics and one input of every node."""
    input_buffer: int
    parameter_buffer: int

    @property
    def total(self) -> int:
        return self.model + self.input_buffer + self.parameter_buffer


def summed(held: Iterable[StageBytes]) -> StageBytes:
    """Add the bytes of devices, or of stages that each have one, part by part."""
    listed = [attrs.asdict(one) for one in held]
    return StageBytes(**{part: sum(one[part] for one in listed) for part in PARTS})
