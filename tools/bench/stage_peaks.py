"""The memory peak of every stage of a real run, tensor by tensor.

    with StagePeaks(executors) as peaks:
        Scheduler(peaks.executors).train(...)
    peaks.total

A tensor belongs to the stage whose operation made it. A stage copies its messages first, as onto a device of its own: the
copy belongs to the receiver, and the original goes when the sender drops it, so a message in a channel belongs to its
sender. Without the copies, stages in one process would share tensors, and no stage would have a memory of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager

from torch import Tensor

from petra_graph.executor.encoded_tensors import EncodedTensors, copied
from petra_graph.executor.stage import StageExecutor
from petra_graph.executor.stage_results import BackwardMessage, Forwarded
from petra_graph.measure.tally import LiveBytes, storages
from petra_graph.program.channels import Edge

_NO_STAGE = 0


class StagePeaks(LiveBytes):  # type: ignore[no-untyped-call]
    """Counts live bytes by stage; tensors that are made between the operations of stages belong to none."""

    def __init__(self, executors: Sequence[StageExecutor]) -> None:
        super().__init__()
        self.live_of: Counter[int] = Counter()
        self.peak_of: Counter[int] = Counter()
        self._owner = _NO_STAGE
        self.executors = [_MeasuredExecutor(executor, self) for executor in executors]
        for executor in executors:
            with self.owned_by(executor.program.index):
                for module in executor.modules.values():
                    for storage in storages([*module.parameters(), *module.buffers()]):
                        self.count(storage)

    @property
    def total(self) -> Mapping[int, int]:
        """The memory peak of every stage in bytes, by its index."""
        return {executor.program.index: self.peak_of[executor.program.index] for executor in self.executors}

    @contextmanager
    def owned_by(self, stage: int) -> Iterator[None]:
        """Let tensors that are made inside the context belong to a stage."""
        before, self._owner = self._owner, stage
        try:
            yield
        finally:
            self._owner = before

    def grow(self, size: int) -> int:
        """Add bytes to the stage whose operation runs."""
        super().grow(size)
        stage = self._owner
        self.live_of[stage] += size
        self.peak_of[stage] = max(self.peak_of[stage], self.live_of[stage])
        return stage

    def shrink(self, size: int, owner: int) -> None:
        """Take bytes from the stage whose operation made them."""
        super().shrink(size, owner)
        self.live_of[owner] -= size


class _MeasuredExecutor(StageExecutor):
    """An executor whose operations own their tensors, and which copies its messages."""

    def __init__(self, executor: StageExecutor, peaks: StagePeaks) -> None:  # the executor's own state, shared
        vars(self).update(vars(executor))
        self._peaks = peaks

    def forward(
        self, micro_batch: int, received: MutableMapping[Edge, EncodedTensors], target: Tensor | None
    ) -> Forwarded:
        """Do the operation as the stage."""
        with self._peaks.owned_by(self.program.index):
            for edge in received:
                received[edge] = copied(received[edge])
            return super().forward(micro_batch, received, target)

    def backward(
        self, micro_batch: int, received: MutableMapping[Edge, BackwardMessage]
    ) -> Mapping[Edge, BackwardMessage]:
        """Do the operation as the stage."""
        with self._peaks.owned_by(self.program.index):
            for edge in received:
                received[edge] = _copied(received[edge])
            return super().backward(micro_batch, received)

    def update(self, norm: Tensor | None = None) -> None:
        """Do the operation as the stage."""
        with self._peaks.owned_by(self.program.index):
            super().update(norm)


def _copied(message: BackwardMessage) -> BackwardMessage:
    activation = None if message.activation is None else copied(message.activation)
    return BackwardMessage(gradients=copied(message.gradients), activation=activation)
