"""The operations of one process's stages: what each receives, computes and sends.

Decision: a received message is read in its slot, and copied only where it would stay for longer than there are slots:
where a stage keeps inputs for many micro-batches, where it is handed on within the process, or where something keeps it that
should not (`received_messages`). What R and I of a split backward receive is copied: graphs hold it until the last part, and a
channel has room for what is in flight, not for what has been received.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from attrs import evolve
from torch import Tensor

from petra_graph.executor.encoded_tensors import EncodedTensors, copied, payload
from petra_graph.executor.reconstruct_recompute_stash import HeadResult
from petra_graph.executor.stage_executor import StageExecutor
from petra_graph.executor.stage_results import BackwardMessage
from petra_graph.graph.node_graph import INPUT
from petra_graph.program.channels import ChannelKey, Edge, Verb
from petra_graph.program.schedule import DIRECTIONS, Action
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
        """Called with every message that a stage receives from a consumer."""
        self._ends: dict[tuple[int, Verb], _Ends] = {
            (program.index, verb): _Ends(
                {
                    channel.key: channels.receivers[channel.key]
                    for channel in program.channels
                    if (channel.receiver, channel.read_by) == (program.index, verb)
                },
                {
                    channel.key: channels.senders[channel.key]
                    for channel in program.channels
                    if (channel.sender, channel.sent_by) == (program.index, verb)
                },
            )
            for program in (executor.program for executor in executors)
            for verb in DIRECTIONS
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

    def backward(self, cursor: StageCursor, action: Action) -> None:
        """Do the backward of a training micro-batch, or one of its parts."""
        match action.verb:
            case "reconstruct":
                self._reconstruct(cursor, action)
            case "parameter_gradient":
                cursor.executor.parameter_gradient(action.micro_batch)
            case _:
                self._differentiate(cursor, action)
                self._messages.used(cursor.index, "backward")
        if action.verb in {"backward", "parameter_gradient"} and not keeps_nothing(cursor.executor.program):
            self._messages.used(cursor.index, "forward")

    def _differentiate(self, cursor: StageCursor, action: Action) -> None:
        """Do an operation that receives gradients and sends them: a whole backward, or a part of one that differentiates."""
        leased = set[int]()
        activations, gradients = self._from_consumers(cursor, action, leased)
        for edge, activation in activations.items():
            gradients[edge] = evolve(gradients[edge], activation=activation)
        executor = cursor.executor
        differentiate = executor.backward if action.verb == "backward" else executor.input_gradient
        for edge, message in differentiate(action.micro_batch, gradients).items():
            weight = torch.tensor([message.weight], dtype=torch.float64)
            self._send(ChannelKey(edge, "backward"), (*message.gradients, *(message.activation or ()), weight), leased)

    def _reconstruct(self, cursor: StageCursor, action: Action) -> None:
        activations, gradients = self._from_consumers(cursor, action, set())
        for edge, activation in cursor.executor.reconstruct(action.micro_batch, activations, gradients).items():
            self._send(ChannelKey(edge, "activation"), activation, set())

    def _from_consumers(
        self, cursor: StageCursor, action: Action, leased: set[int]
    ) -> tuple[dict[Edge, EncodedTensors], dict[Edge, BackwardMessage]]:
        """Return the activations and the gradients that an operation reads; memory that must not stay in this process joins `leased`."""
        activations, gradients = dict[Edge, EncodedTensors](), dict[Edge, BackwardMessage]()
        in_place = action.verb == "backward"
        for key, receiver in self._ends[cursor.index, action.verb].receivers.items():
            message = self.receive(key)
            streams, weight = 0, message[len(message) :]
            if key.direction == "backward":
                streams, message, weight = self._channels.channels[key].streams, message[:-1], message[-1:]
            tensors = moved(message, cursor.device)
            if receiver.leases:
                tensors = self._messages.hand(cursor.index, "backward", tensors) if in_place else copied(tensors)
            self.observe_message(cursor.index, key, action.micro_batch, (*tensors, *weight))
            if receiver.leases and in_place:
                leased |= _memory(tensors)
            if streams < len(tensors):
                activations[key.edge] = tensors[streams:]
            if weight:
                value = float(payload(weight[0]).numpy()[0])
                gradients[key.edge] = BackwardMessage(gradients=tensors[:streams], activation=None, weight=value)
            del message, tensors, weight  # else they would keep their slot
        return activations, gradients

    def keys_from_consumers(self, stage: int) -> list[ChannelKey]:
        """Return the channels on which a stage receives what its consumers send back."""
        ends = (self._ends[stage, verb].receivers for verb in DIRECTIONS if verb != "forward")
        return [key for receivers in ends for key in receivers]

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
