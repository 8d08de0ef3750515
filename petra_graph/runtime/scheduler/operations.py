"""One process's stages at work: what an operation receives, does and sends.

Decision: a received message is read in its slot, and copied only where it would stay for longer than there are slots:
where a stage keeps inputs for many micro-batches, or where it is handed on within the process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import attrs
from torch import Tensor, device

from petra_graph.executor.encoded_tensors import EncodedTensor, EncodedTensors
from petra_graph.executor.segment_runners import HeadResult
from petra_graph.executor.stage import BackwardMessage, StageExecutor
from petra_graph.graph.node_graph import INPUT
from petra_graph.program.channels import ChannelKey
from petra_graph.program.stage_program import Edge, InputEdge, StageProgram
from petra_graph.runtime.scheduler.inline import MicroBatch
from petra_graph.runtime.scheduler.stage_cursor import StageCursor
from petra_graph.runtime.transport.local import moved
from petra_graph.runtime.transport.process_channels import ProcessChannels, Queue


class Operations:
    """What this process's stages do with messages."""

    def __init__(
        self, executors: Sequence[StageExecutor], links: ProcessChannels, entries: Mapping[Edge, InputEdge]
    ) -> None:
        self._executors, self._links, self._entries = executors, links, entries
        self._in_place = {executor.program.index: reads_in_place(executor.program) for executor in executors}
        self._holds_head = any(executor.program.holds_head for executor in executors)
        self._targets: deque[Tensor] = deque()
        """Of micro-batches on their way to the head, where that is in this process."""

    def forward(self, turn: StageCursor, micro_batch: int, source: Iterator[MicroBatch]) -> HeadResult | None:
        """Do the forward of a training micro-batch; return the head's result."""
        executor = turn.executor
        received, target, borrowed = self._received(turn, source, in_place=self._in_place[executor.program.index])
        done = executor.forward(micro_batch, received, target)
        for edge, carried in done.sent.items():
            self._send(ChannelKey(edge, "forward"), carried, borrowed)
        return done.result

    def eval_step(self, turn: StageCursor, source: Iterator[MicroBatch]) -> HeadResult | None:
        """Do the forward of an evaluation batch; return the head's result."""
        received, target, borrowed = self._received(turn, source, in_place=True)
        done = turn.executor.evaluate(received, target)
        for edge, carried in done.sent.items():
            self._send(ChannelKey(edge, "forward"), carried, borrowed)
        return done.result

    def _received(
        self, turn: StageCursor, source: Iterator[MicroBatch], *, in_place: bool
    ) -> tuple[dict[Edge, EncodedTensors], Tensor | None, set[int]]:
        """Return what a forward reads, and the memory of it that belongs to slots."""
        program, received = turn.executor.program, dict[Edge, EncodedTensors]()
        target: Tensor | None = None
        borrowed: set[int] = set()
        for edge in program.receives:
            if edge.producer == INPUT:
                samples, target = next(source)
                received[edge] = moved((samples,), turn.device)
                if self._holds_head:
                    self._targets.append(target)
                continue
            carried = moved(self._links.receivers[ChannelKey(edge, "forward")].receive(), turn.device)
            received[edge] = carried if in_place else _copied(carried)
            borrowed |= _memory(carried)
        if not program.holds_head:
            return received, None, borrowed
        if not any(reads_samples(executor.program) for executor in self._executors):
            _, target = next(source)
            self._targets.append(target)
        return received, self._targets.popleft().to(turn.device), borrowed

    def backward(self, turn: StageCursor, micro_batch: int) -> None:
        """Do the backward of a training micro-batch."""
        messages: dict[Edge, BackwardMessage] = {}
        borrowed: set[int] = set()
        for edge in turn.executor.program.sends:
            messages[edge] = message = self._received_back(edge, turn.device)
            borrowed |= _memory(message.gradients + (message.activation or ()))
            del message  # else it would keep its slot
        for edge, message in turn.executor.backward(micro_batch, messages).items():
            self._send(ChannelKey(edge, "backward"), message.gradients + (message.activation or ()), borrowed)

    def _received_back(self, edge: Edge, on: device) -> BackwardMessage:
        carried = moved(self._links.receivers[ChannelKey(edge, "backward")].receive(), on)
        streams = self._entries[edge].streams
        return BackwardMessage(gradients=carried[:streams], activation=carried[streams:] or None)

    def _send(self, channel: ChannelKey, carried: EncodedTensors, borrowed: set[int]) -> None:
        """Send a message; what lies in a slot is copied where it would stay in this process."""
        sender = self._links.senders[channel]
        if isinstance(sender, Queue) and borrowed & _memory(carried):
            carried = _copied(carried)
        sender.send(carried)


def reads_in_place(program: StageProgram) -> bool:
    """Whether a stage is done with what it received before it needs many messages more.

    A stage that keeps inputs for several micro-batches copies them out of their slots, of which there are few.
    """
    keeps_nothing = all(segment.kind == "reversible" and segment.keeps == "nothing" for segment in program.segments)
    return keeps_nothing or program.depth == 1


def reads_samples(program: StageProgram) -> bool:
    """Whether a stage reads what the data set has."""
    return any(edge.producer == INPUT for edge in program.receives)


def _copied(carried: EncodedTensors) -> EncodedTensors:
    return tuple(
        attrs.evolve(value, payload=value.payload.clone(), scale=None if value.scale is None else value.scale.clone())
        if isinstance(value, EncodedTensor)
        else value.clone()
        for value in carried
    )


def _memory(carried: EncodedTensors) -> set[int]:
    """Return where the tensors' memory begins."""
    tensors = [value.payload if isinstance(value, EncodedTensor) else value for value in carried]
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}
