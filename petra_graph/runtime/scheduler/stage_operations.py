"""The operations of one process's stages: what each receives, computes and sends.

Decision: a received message is read in its slot, and copied only where it would stay for longer than there are slots:
where a stage keeps inputs for many micro-batches, where it is handed on within the process, or where something keeps it that
should not (`received_messages`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from petra_graph.executor.encoded_tensors import EncodedTensors, copied, payload
from petra_graph.executor.reconstruct_recompute_stash import HeadResult
from petra_graph.executor.stage_executor import StageExecutor
from petra_graph.executor.stage_results import BackwardMessage
from petra_graph.graph.node_graph import INPUT
from petra_graph.program.channels import ChannelKey, Direction, Edge
from petra_graph.program.schedule import Action, Verb
from petra_graph.program.stage_program import StageProgram
from petra_graph.runtime.scheduler.received_messages import Kind, ReceivedMessages
from petra_graph.runtime.scheduler.stage_cursor import StageCursor
from petra_graph.runtime.transport.channel_ends import Receiver, Sender
from petra_graph.runtime.transport.local_channel import LocalChannel, moved
from petra_graph.runtime.transport.process_channels import ProcessChannels

MicroBatch = tuple[Tensor, Tensor]
"""Samples [n, *shape] and targets [n], on the CPU."""


ObserveMessage = Callable[[int, ChannelKey, int, EncodedTensors], None]
"""Called with a stage's index, a channel, a micro-batch and the message."""


class _Ends(NamedTuple):
    """The channels that an operation receives from and sends on."""

    receivers: Mapping[ChannelKey, Receiver]
    senders: Mapping[ChannelKey, Sender]


_NO_ENDS = _Ends({}, {})
"""Of operations without messages."""


class StageOperations:
    """What this process's stages do with messages."""

    def __init__(self, executors: Sequence[StageExecutor], channels: ProcessChannels) -> None:
        self._channels = channels
        self._messages = ReceivedMessages(executors)
        self._reads_samples = any(reads_samples(executor.program) for executor in executors)
        self._holds_head = any(executor.program.holds_head for executor in executors)
        self._targets: deque[Tensor] = deque()
        """Of micro-batches on their way to the head, where that is in this process."""
        self._put_back: dict[ChannelKey, deque[EncodedTensors]] = {}
        """Messages that were in flight when the run was interrupted."""
        self.observe_message: ObserveMessage = lambda *_: None
        """Called with every backward message that a stage receives."""
        self._ends: dict[tuple[int, Verb], _Ends] = {
            (program.index, direction): _ends_of(program, direction, channels)
            for program in (executor.program for executor in executors)
            for direction in get_args(Direction)
        }

    def can_begin(self, cursor: StageCursor, action: Action) -> bool:
        """Whether an operation has its messages, and room for what it sends."""
        ends = self._ends.get((cursor.index, action.verb), _NO_ENDS)
        return all(self.ready(key) for key in ends.receivers) and all(
            sender.has_room() for sender in ends.senders.values()
        )

    def awaited(self, cursor: StageCursor, action: Action) -> list[ChannelKey]:
        """Return the channels on which an operation waits: for a message, or for room."""
        ends = self._ends.get((cursor.index, action.verb), _NO_ENDS)
        missing = [key for key in ends.receivers if not self.ready(key)]
        return missing + [key for key, sender in ends.senders.items() if not sender.has_room()]

    def forward(self, cursor: StageCursor, micro_batch: int, source: Iterator[MicroBatch]) -> HeadResult | None:
        """Do the forward of a training micro-batch; return the head's result."""
        result = self._forward(cursor, micro_batch, source)
        if keeps_nothing(cursor.executor.program):
            self._messages.used(cursor.index, "forward")
        return result

    def _forward(self, cursor: StageCursor, micro_batch: int, source: Iterator[MicroBatch]) -> HeadResult | None:
        received, target, leased = self._received(cursor, source, "forward")
        done = cursor.executor.forward(micro_batch, received, target)
        for edge, message in done.sent.items():
            self._send(ChannelKey(edge, "forward"), message, leased)
        return done.result

    def eval_step(self, cursor: StageCursor, source: Iterator[MicroBatch]) -> HeadResult | None:
        """Do the forward of an evaluation batch; return the head's result."""
        result = self._eval_step(cursor, source)
        self._messages.used(cursor.index, "evaluation")
        return result

    def _eval_step(self, cursor: StageCursor, source: Iterator[MicroBatch]) -> HeadResult | None:
        received, target, leased = self._received(cursor, source, "evaluation")
        done = cursor.executor.evaluate(received, target)
        for edge, message in done.sent.items():
            self._send(ChannelKey(edge, "forward"), message, leased)
        return done.result

    def backward(self, cursor: StageCursor, micro_batch: int) -> None:
        """Do the backward of a training micro-batch."""
        self._backward(cursor, micro_batch)
        self._messages.used(cursor.index, "backward")
        if not keeps_nothing(cursor.executor.program):
            self._messages.used(cursor.index, "forward")

    def _backward(self, cursor: StageCursor, micro_batch: int) -> None:
        messages: dict[Edge, BackwardMessage] = {}
        leased: set[int] = set()
        for key, receiver in self._ends[cursor.index, "backward"].receivers.items():
            *carried, weight = self.receive(key)
            tensors = moved(tuple(carried), cursor.device)
            if receiver.leases:
                tensors = self._messages.hand(cursor.index, "backward", tensors)
                leased |= _memory(tensors)
            self.observe_message(cursor.index, key, micro_batch, (*tensors, weight))
            streams = self._channels.channels[key].streams
            messages[key.edge] = BackwardMessage(
                gradients=tensors[:streams],
                activation=tensors[streams:] or None,
                weight=float(payload(weight).numpy()[0]),
            )
            del carried, tensors, weight  # else they would keep their slot
        for edge, message in cursor.executor.backward(micro_batch, messages).items():
            weight = torch.tensor([message.weight], dtype=torch.float64)
            self._send(ChannelKey(edge, "backward"), (*message.gradients, *(message.activation or ()), weight), leased)

    def backward_keys(self, stage: int) -> list[ChannelKey]:
        """Return the channels on which a stage receives what its consumers send back."""
        return list(self._ends[stage, "backward"].receivers)

    def put_back(self, key: ChannelKey, message: EncodedTensors) -> None:
        """Make a message the next one on a channel, behind those that were put back before it."""
        self._put_back.setdefault(key, deque()).append(message)

    def ready(self, key: ChannelKey) -> bool:
        return bool(self._put_back.get(key)) or self._channels.receivers[key].ready()

    def receive(self, key: ChannelKey) -> EncodedTensors:
        """Return the oldest message of a channel."""
        if put_back := self._put_back.get(key):
            return put_back.popleft()
        return self._channels.receivers[key].receive()

    def _received(
        self, cursor: StageCursor, source: Iterator[MicroBatch], kind: Kind
    ) -> tuple[dict[Edge, EncodedTensors], Tensor | None, set[int]]:
        """Return what a forward reads, its targets, and the memory of it that must not stay in this process."""
        program, received = cursor.executor.program, dict[Edge, EncodedTensors]()
        leased: set[int] = set()
        for edge in program.receives:
            if edge.producer == INPUT:
                samples, targets = next(source)
                received[edge] = moved((samples,), cursor.device)
                if self._holds_head:
                    self._targets.append(targets)
                continue
            receiver = self._channels.receivers[ChannelKey(edge, "forward")]
            tensors = moved(receiver.receive(), cursor.device)
            if receiver.leases and (kind == "evaluation" or reads_in_place(program)):
                tensors = self._messages.hand(cursor.index, kind, tensors)
                leased |= _memory(tensors)
            elif receiver.leases:
                tensors = copied(tensors)
            received[edge] = tensors
            del tensors  # else they would keep their slot
        if not program.holds_head:
            return received, None, leased
        if not self._reads_samples:
            _, targets = next(source)
            self._targets.append(targets)
        return received, self._targets.popleft(), leased

    def _send(self, key: ChannelKey, message: EncodedTensors, leased: set[int]) -> None:
        """Send a message; what lies in a slot is copied where it would stay in this process."""
        sender = self._channels.senders[key]
        if leased and isinstance(sender, LocalChannel) and leased & _memory(message):
            message = copied(message)
        sender.send(message)


def _ends_of(program: StageProgram, direction: Direction, channels: ProcessChannels) -> _Ends:
    own = [channel for channel in program.channels if channel.key.direction == direction]
    return _Ends(
        {one.key: channels.receivers[one.key] for one in own if one.receiver == program.index},
        {one.key: channels.senders[one.key] for one in own if one.sender == program.index},
    )


def reads_in_place(program: StageProgram) -> bool:
    """Whether a stage is done with what it received before it needs many messages more.

    A stage that keeps inputs for several micro-batches copies them out of their slots, of which there are few.
    """
    return keeps_nothing(program) or program.depth == 1


def keeps_nothing(program: StageProgram) -> bool:
    """Whether a stage holds nothing between a forward and its backward."""
    return all(segment.kind == "reversible" and segment.keeps == "nothing" for segment in program.segments)


def reads_samples(program: StageProgram) -> bool:
    return any(edge.producer == INPUT for edge in program.receives)


def _memory(message: EncodedTensors) -> set[int]:
    """Return where the tensors' memory begins."""
    return {payload(value).untyped_storage().data_ptr() for value in message}
