"""What every stage of a real run holds at most, tensor by tensor.

    with StagePeaks(executors) as peaks:
        Scheduler(peaks.executors).train(...)
    peaks.total

Whose is a tensor? The stage's whose operation made it. What a stage receives is copied first, as it would be onto a
device of its own: the copy is the receiver's, and the sender's goes when nothing of the sender's holds it, so a message
on a wire is its sender's. Without the copies, stages in one process share tensors, and no stage's memory could be told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager

import attrs
from torch import Tensor

from petra_graph.executor.encoded_tensors import EncodedTensor, EncodedTensors
from petra_graph.executor.stage import BackwardMessage, Forwarded, StageExecutor
from petra_graph.measure.live_bytes import LiveBytes, storages
from petra_graph.program.channels import Edge

_NOBODY = 0


class StagePeaks(LiveBytes):  # type: ignore[no-untyped-call]
    """Counts live bytes for each stage apart; what is made between stages' operations is nobody's."""

    def __init__(self, executors: Sequence[StageExecutor]) -> None:
        super().__init__()
        self.live_of: Counter[int] = Counter()
        self.peak_of: Counter[int] = Counter()
        self._owner = _NOBODY
        self.executors = [_Watched(executor, self) for executor in executors]
        for executor in executors:
            with self.owned_by(executor.program.index):
                self._count_resident(executor)

    @property
    def total(self) -> Mapping[int, int]:
        """Every stage's largest number of bytes, by its index."""
        return {executor.program.index: self.peak_of[executor.program.index] for executor in self.executors}

    @contextmanager
    def owned_by(self, stage: int) -> Iterator[None]:
        """Let what is made belong to a stage."""
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
        """Take bytes from the stage that had made them."""
        super().shrink(size, owner)
        self.live_of[owner] -= size

    def _count_resident(self, executor: StageExecutor) -> None:
        for module in executor.modules.values():
            for storage in storages([*module.parameters(), *module.buffers()]):
                self.count(storage)


class _Watched(StageExecutor):
    """An executor that says when it is at work, and copies what it receives."""

    def __init__(self, executor: StageExecutor, peaks: StagePeaks) -> None:  # the executor's own state, shared
        vars(self).update(vars(executor))
        self._peaks = peaks

    def forward(
        self, micro_batch: int, received: MutableMapping[Edge, EncodedTensors], target: Tensor | None
    ) -> Forwarded:
        """Do it as the stage."""
        with self._peaks.owned_by(self.program.index):
            for edge in received:
                received[edge] = _copies(received[edge])
            return super().forward(micro_batch, received, target)

    def backward(
        self, micro_batch: int, received: MutableMapping[Edge, BackwardMessage]
    ) -> Mapping[Edge, BackwardMessage]:
        """Do it as the stage."""
        with self._peaks.owned_by(self.program.index):
            for edge in received:
                received[edge] = _copied(received[edge])
            return super().backward(micro_batch, received)

    def update(self, norm: Tensor | None = None) -> None:
        """Do it as the stage."""
        with self._peaks.owned_by(self.program.index):
            super().update(norm)


def _copies(carried: EncodedTensors) -> EncodedTensors:
    return tuple(value.clone() if isinstance(value, Tensor) else _copied_whole(value) for value in carried)


def _copied_whole(value: EncodedTensor) -> EncodedTensor:
    scale = None if value.scale is None else value.scale.clone()
    return attrs.evolve(value, payload=value.payload.clone(), scale=scale)


def _copied(message: BackwardMessage) -> BackwardMessage:
    return BackwardMessage(
        gradients=_copies(message.gradients),
        activation=None if message.activation is None else _copies(message.activation),
    )
