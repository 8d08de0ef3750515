"""The hooks of a stage's operations, for code that observes a stage at work."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext

from petra_graph.blocks import Streams
from petra_graph.kinds.tensor_trees import Tree
from petra_graph.program.stage_program import Segment


class StageObserver:
    """Receives the operations of one stage. Every hook here does nothing: a subclass overrides the hooks that it needs.

    Tensors are the stage's own: an observer may keep them, and must not change them.
    """

    def forward(self, micro_batch: int, target: Tree | None) -> AbstractContextManager[None]:
        """Return the context of a forward; `target` is the head's."""
        return nullcontext()

    def backward(self, micro_batch: int) -> AbstractContextManager[None]:
        """Return the context of a backward."""
        return nullcontext()

    def update(self) -> AbstractContextManager[None]:
        """Return the context of an update."""
        return nullcontext()

    def segment_forward(self, micro_batch: int, segment: Segment, inputs: Streams) -> None:
        """Receive the inputs of a segment before its forward, samples as the data set stores them."""

    def segment_reconstructed(self, micro_batch: int, segment: Segment, inputs: Streams) -> None:
        """Receive the inputs of a segment in its backward, reconstructed or stored."""

    def segment_backward(self, micro_batch: int, segment: Segment) -> None:
        """Learn that the gradients of a segment's parameters are complete for this micro-batch."""


def entered(contexts: Iterable[AbstractContextManager[None]]) -> ExitStack:
    """Enter all of these contexts; the returned one leaves them."""
    with ExitStack() as entered:
        for context in contexts:
            entered.enter_context(context)
        return entered.pop_all()
