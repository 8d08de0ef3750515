"""Somebody who looks on while a stage works."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from petra_graph.blocks import Reversed, Streams
from petra_graph.program.stage_program import Segment


class StageObserver:
    """Is told what one stage does, and does nothing: override what is of interest.

    Tensors are the stage's own: a watcher may keep them, and changes none.
    """

    def forward(self, micro_batch: int, target: Tensor | None) -> AbstractContextManager[None]:
        """Return what surrounds a forward; `target` is the head's."""
        return nullcontext()

    def backward(self, micro_batch: int) -> AbstractContextManager[None]:
        """Return what surrounds a backward."""
        return nullcontext()

    def update(self) -> AbstractContextManager[None]:
        """Return what surrounds an update."""
        return nullcontext()

    def entered(self, micro_batch: int, segment: Segment, inputs: Streams) -> None:
        """Hear what a segment reads in its forward, samples as the data set has them."""

    def left(self, micro_batch: int, segment: Segment, found: Reversed) -> None:
        """Hear what a segment's backward gives."""
