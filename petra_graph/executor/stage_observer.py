"""The hooks of a stage's operations, for code that observes a stage at work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

from torch import Tensor

from petra_graph.blocks import Streams
from petra_graph.program.stage_program import Segment


class StageObserver:
    """Receives the operations of one stage. Every hook here does nothing: a subclass overrides the hooks that it needs.

    Tensors are the stage's own: an observer may keep them, and must not change them.
    """

    def forward(self, micro_batch: int, target: Tensor | None) -> AbstractContextManager[None]:
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


class StageObservers(StageObserver):
    """All observers of one stage, in the order in which they came."""

    def __init__(self) -> None:
        self.observers: list[StageObserver] = []

    def forward(self, micro_batch: int, target: Tensor | None) -> AbstractContextManager[None]:
        return self._all(lambda observer: observer.forward(micro_batch, target))

    def backward(self, micro_batch: int) -> AbstractContextManager[None]:
        return self._all(lambda observer: observer.backward(micro_batch))

    def update(self) -> AbstractContextManager[None]:
        return self._all(lambda observer: observer.update())

    def segment_forward(self, micro_batch: int, segment: Segment, inputs: Streams) -> None:
        for observer in self.observers:
            observer.segment_forward(micro_batch, segment, inputs)

    def segment_reconstructed(self, micro_batch: int, segment: Segment, inputs: Streams) -> None:
        for observer in self.observers:
            observer.segment_reconstructed(micro_batch, segment, inputs)

    def segment_backward(self, micro_batch: int, segment: Segment) -> None:
        for observer in self.observers:
            observer.segment_backward(micro_batch, segment)

    def _all(self, context_of: Callable[[StageObserver], AbstractContextManager[None]]) -> AbstractContextManager[None]:
        if not self.observers:
            return nullcontext()
        return _entered([context_of(observer) for observer in self.observers])


@contextmanager
def _entered(contexts: list[AbstractContextManager[None]]) -> Iterator[None]:
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield
