"""How many bytes a stage holds, and of what: values that planner and measurement share."""

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
    """A stage's memory at the moment when it is largest: the parts are those of that moment, and add up to the total."""

    parameters: int = 0
    """With running statistics."""
    gradients: int = 0
    """There from the end of a window's first backward to its update; while that backward makes them, `working`."""
    optimizer: int = 0
    input_buffer: int = 0
    """Inputs that wait for their backward; the first stage's in the data set's own type."""
    parameter_buffer: int = 0
    """Copies of older parameters."""
    graphs: int = 0
    """Kept graphs, with what goes into them and comes out."""
    working: int = 0
    """What the operation holds that is under way: what it received, makes, and has not yet sent; samples and, in the
    head, gradients that wait for the backward."""
    channels: int = 0
    """What was sent and has not been received; what is also in a buffer or a graph counts there."""

    @property
    def total(self) -> int:
        """All of them."""
        return sum(getattr(self, part) for part in PARTS)


@frozen(kw_only=True)
class PaperBytes:
    """What the paper's table 3 counts, in its own way."""

    model: int
    """Parameters, running statistics and one input of every node."""
    input_buffer: int
    parameter_buffer: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.model + self.input_buffer + self.parameter_buffer


def summed(stages: Iterable[StageBytes]) -> StageBytes:
    """Add stages part by part: what a device holds at most that hosts them all.

    Their largest moments need not coincide, and what one hands to another on the same device is one tensor there, so
    this is a bound from above.
    """
    listed = [attrs.asdict(stage) for stage in stages]
    return StageBytes(**{part: sum(stage[part] for stage in listed) for part in PARTS})
