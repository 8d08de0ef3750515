"""The memory peak of every stage, or of every device, of a real run, tensor by tensor.

    with StagePeaks(executors) as peaks:
        Scheduler(peaks.executors).train(...)
    peaks.total

A tensor belongs to the device whose operation made it; without `devices`, every stage has its own. A stage copies its
messages from other devices first, as onto its own: the copy belongs to the receiver, and the original goes when the sender
drops it, so a message in a channel belongs to its sender. Stages on one device share tensors, as they do in a run.

Samples are copied onto the device of their stage, unless `loaded` has made them there, with their targets where the head
is on that device too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager

from torch import Tensor

from petra_graph.executor.encoded import EncodedTensors, each
from petra_graph.executor.head import HeadResult
from petra_graph.executor.stage import StageExecutor
from petra_graph.graph.node_graph import INPUT
from petra_graph.measure.tally import LiveBytes, storages
from petra_graph.program.channels import Edge
from petra_graph.program.stage_program import StageProgram
from petra_graph.runtime.stage_io import MicroBatch

_NO_DEVICE = 0


class StagePeaks(LiveBytes):  # type: ignore[no-untyped-call]
    """Counts live bytes by device; tensors that are made between the operations of stages belong to none."""

    def __init__(self, executors: Sequence[StageExecutor], devices: Mapping[int, str] | None = None) -> None:
        """Count the parameters.

        Args:
            executors: of all stages.
            devices: of each stage, by its index; None: every stage has its own.
        """
        super().__init__()
        self.live_of: Counter[int] = Counter()
        self.peak_of: Counter[int] = Counter()
        self._owner = _NO_DEVICE
        self.loads = False
        """Whether samples belong to their stage's device before it reads them."""
        named = devices or {executor.program.index: str(executor.program.index) for executor in executors}
        self._number = {name: number for number, name in enumerate(dict.fromkeys(named.values()), start=1)}
        """Of each device."""
        self.owner_of = {
            name: self._number[named[executor.program.index]]
            for executor in executors
            for name in executor.program.nodes
        }
        """The number of each node's device."""
        self.executors = [_MeasuredExecutor(executor, self) for executor in self._counted_parameters(executors)]

    def _counted_parameters(self, executors: Sequence[StageExecutor]) -> Sequence[StageExecutor]:
        for executor in executors:
            with self.owned_by(executor.program):
                for module in executor.modules.values():
                    for storage in storages([*module.parameters(), *module.buffers()]):
                        self.count(storage)
        return executors

    @property
    def total(self) -> Mapping[int, int]:
        """The memory peak of every stage's device in bytes, by the stage's index."""
        return {
            executor.program.index: self.peak_of[self.owner_of[executor.program.nodes[0]]]
            for executor in self.executors
        }

    @property
    def of_devices(self) -> Mapping[str, int]:
        """The memory peak of every device in bytes."""
        return {name: self.peak_of[number] for name, number in self._number.items()}

    def loaded(self, data: Iterable[MicroBatch]) -> Iterator[MicroBatch]:
        """Yield micro-batches whose memory belongs to the device that reads the samples."""
        first, head = self.executors[0], self.executors[-1]
        self.loads = True
        for samples, targets in data:
            with self.owned_by(first.program):
                own = samples.clone(), targets.clone() if first.device == head.device else targets
            yield own
            del own

    @contextmanager
    def owned_by(self, program: StageProgram) -> Iterator[None]:
        """Let tensors that are made inside the context belong to a stage's device."""
        before, self._owner = self._owner, self.owner_of[program.nodes[0]]
        try:
            yield
        finally:
            self._owner = before

    def grow(self, size: int) -> int:
        """Add bytes to the device whose operation runs."""
        super().grow(size)
        owner = self._owner
        self.live_of[owner] += size
        self.peak_of[owner] = max(self.peak_of[owner], self.live_of[owner])
        return owner

    def shrink(self, size: int, owner: int) -> None:
        """Take bytes from the device whose operation made them."""
        super().shrink(size, owner)
        self.live_of[owner] -= size


class _MeasuredExecutor(StageExecutor):
    """An executor whose operations own their tensors, and which copies messages of other devices."""

    def __init__(self, executor: StageExecutor, peaks: StagePeaks) -> None:  # the executor's own state, shared
        vars(self).update(vars(executor))
        self._peaks = peaks
        self.device = peaks.owner_of[executor.program.nodes[0]]

    def forward(
        self, micro_batch: int | None, received: MutableMapping[Edge, EncodedTensors], target: Tensor | None
    ) -> tuple[Mapping[Edge, EncodedTensors], HeadResult | None]:
        """Do the operation as the stage."""
        with self._peaks.owned_by(self.program):
            for edge in received:
                there = self._peaks.loads if edge.producer == INPUT else self._from(edge.producer)
                if not there:
                    received[edge] = each(Tensor.clone, received[edge])
            return super().forward(micro_batch, received, target)

    def backward(
        self, micro_batch: int, received: MutableMapping[Edge, EncodedTensors], weight: float
    ) -> Mapping[Edge, EncodedTensors]:
        """Do the operation as the stage."""
        with self._peaks.owned_by(self.program):
            for edge in received:
                if not self._from(edge.consumer):
                    received[edge] = each(Tensor.clone, received[edge])
            return super().backward(micro_batch, received, weight)

    def update(self, norm: Tensor | None = None) -> None:
        """Do the operation as the stage."""
        with self._peaks.owned_by(self.program):
            super().update(norm)

    def _from(self, node: str) -> bool:
        """Whether what a node sends is on the same device."""
        return self._peaks.owner_of[node] == self.device
