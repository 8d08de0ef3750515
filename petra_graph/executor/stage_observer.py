"""The hooks of a stage's operations, for code that observes a stage at work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

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


class StageObservers(list[StageObserver]):
    """All observers of one stage, in the order in which they came; an empty list is asked nothing."""

    def forward(self, micro_batch: int, target: Tree | None) -> AbstractContextManager[None]:
        return _entered([observer.forward(micro_batch, target) for observer in self])

    def backward(self, micro_batch: int) -> AbstractContextManager[None]:
        return _entered([observer.backward(micro_batch) for observer in self])

    def update(self) -> AbstractContextManager[None]:
        return _entered([observer.update() for observer in self])


@contextmanager
def _entered(contexts: list[AbstractContextManager[None]]) -> Iterator[None]:
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield
