"""The operations of one process's stages: what each receives, computes and sends.

Decision: a received message is read in its slot, and copied only where it would stay for longer than there are slots:
where a stage keeps inputs for many micro-batches, where it is handed on within the process, or where something keeps it that
should not. A channel has few slots, and a slot is taken for as long as a tensor over it lives: a block, a hook or a reference cycle that
keeps tensors of earlier micro-batches would take them all, and the run would wait for ever. So the first messages of every kind are copied, and
what a stage has received must be gone when it begins its next operation of that kind.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, Protocol, cast

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from petra_graph.executor.encoded_tensors import EncodedTensors, copied, payload
from petra_graph.executor.head import HeadResult
from petra_graph.executor.stage_executor import BackwardMessage, StageExecutor
from petra_graph.plugins.tensor_trees import Tree, inputs_of
from petra_graph.program.channels import ChannelKey, Edge
from petra_graph.program.schedule import Action
from petra_graph.runtime.scheduler.stage_at_work import StageAtWork
from petra_graph.runtime.transport.channel import LocalChannel, Receiver, Sender, moved
from petra_graph.runtime.transport.process_channels import ProcessChannels

Kind = Literal["forward", "backward", "evaluation"]
TRIALS = 2
"""Operations of a stage, of each kind, whose messages are copied to see whether something keeps them."""


class ReceivedMessages:
    """Decides for each stage of a process, and each kind of its operations, how messages are read."""

    def __init__(self, executors: Iterable[StageExecutor]) -> None:
        self._nodes = {executor.program.index: ", ".join(executor.program.nodes) for executor in executors}
        self._trials: Counter[tuple[int, Kind]] = Counter()
        self._kept: set[tuple[int, Kind]] = set()
        self._handed: dict[tuple[int, Kind], list[StorageWeakRef]] = defaultdict(list)

    def hand(self, stage: int, kind: Kind, message: EncodedTensors) -> EncodedTensors:
        """Return a message that lies in a slot as a stage is to read it, and observe its memory."""
        if (stage, kind) in self._kept:
            return copied(message)
        handed = copied(message) if self._trials[stage, kind] < TRIALS else message
        self._handed[stage, kind] += [_observed(payload(value)) for value in handed]
        return handed

    def expect_gone(self, stage: int, kind: Kind) -> None:
        """Expect that nothing is left of what a stage received for its operation before of this kind, else copy from now on."""
        handed = self._handed.pop((stage, kind), None)
        if handed is None:
            return
        self._trials[stage, kind] += 1
        if all(map(_gone, handed)):
            return
        self._kept.add((stage, kind))
        message = (
            f"something keeps what stage {stage} ({self._nodes[stage]}) has received for its {kind}, a block, a hook or a cycle of "
            "references: its messages are copied from now on, which costs their bytes once more"
        )
        warnings.warn(message, RuntimeWarning, stacklevel=2)


def _observed(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def _gone(memory: StorageWeakRef) -> bool:
    return bool(memory.expired())  # type: ignore[no-untyped-call]


MicroBatch = tuple[Tree, Tree]
"""Samples [n, *shape] and targets [n], on the CPU; several inputs are in a dictionary, several targets in a tuple or a dictionary."""


class Batches(Protocol):
    """Evaluation batches whose sizes are known before they are loaded."""

    @property
    def sizes(self) -> Sequence[int]:
        """Samples of each batch."""
        ...

    def __iter__(self) -> Iterator[MicroBatch]: ...


_ONE = torch.ones(1, dtype=torch.float64)
"""The weight of most micro-batches, as it travels."""
ObserveMessage = Callable[[int, ChannelKey, int, EncodedTensors], None]
"""Called with a stage's index, a channel, a micro-batch and the message."""


class StageOperations:
    """What this process's stages do with messages."""

    def __init__(self, stages: Sequence[StageAtWork], channels: ProcessChannels) -> None:
        self._channels = channels
        self._messages = ReceivedMessages([stage.executor for stage in stages])
        self._reads_samples = any(stage.samples for stage in stages)
        self._holds_head = any(stage.holds_head for stage in stages)
        self._targets: deque[Tree] = deque()
        """Of micro-batches on their way to the head, where that is in this process."""
        self.put_back_messages: dict[ChannelKey, deque[EncodedTensors]] = {}
        """Messages that were in flight when the run was interrupted."""
        self.observe_message: ObserveMessage | None = None
        """Called with every backward message that a stage receives."""

    def awaited(self, stage: StageAtWork, action: Action) -> list[ChannelKey]:
        """Return the channels on which an operation waits: for a message, or for room."""
        missing = [end.key for end in stage.incoming[action.verb] if not self.ready(end.key)]
        return missing + [key for key, sender in stage.outgoing[action.verb].values() if not sender.has_room()]

    def forward(self, stage: StageAtWork, source: Iterator[MicroBatch], micro_batch: int | None) -> HeadResult | None:
        """Receive, run the stage, and send; without a micro-batch for an evaluation. Return the head's result."""
        kind: Kind = "evaluation" if micro_batch is None else "forward"
        if stage.leases:
            self._messages.expect_gone(stage.index, kind)
        received: dict[Edge, EncodedTensors] = {}
        leased: set[int] = set()
        if stage.samples or (stage.holds_head and not self._reads_samples):
            samples, targets = next(source)
            for edge in stage.samples:
                received[edge] = moved(inputs_of(samples), stage.device)
            if self._holds_head:
                self._targets.append(targets)
        for key, receiver, moves, _ in stage.incoming["forward"]:
            tensors = self._take(key, receiver) if self.put_back_messages else receiver.receive()
            if moves:
                tensors = moved(tensors, stage.device)
            if receiver.leases and (micro_batch is None or stage.reads_in_place):
                tensors = self._messages.hand(stage.index, kind, tensors)
                leased |= _memory(tensors)
            elif receiver.leases:
                tensors = copied(tensors)
            received[key.edge] = tensors
            del tensors  # else they would keep their slot
        target = self._targets.popleft() if stage.holds_head else None
        executor = stage.executor
        done = (
            executor.evaluate(received, target)
            if micro_batch is None
            else executor.forward(micro_batch, received, target)
        )
        for edge, message in done.sent.items():
            _, sender = stage.outgoing["forward"][edge]
            sender.send(_sendable(sender, message, leased) if leased else message)
        return done.result

    def backward(self, stage: StageAtWork, micro_batch: int) -> None:
        """Do the backward of a training micro-batch."""
        if stage.leases:
            self._messages.expect_gone(stage.index, "backward")
        messages: dict[Edge, BackwardMessage] = {}
        leased: set[int] = set()
        for key, receiver, moves, streams in stage.incoming["backward"]:
            *carried, weight = self._take(key, receiver) if self.put_back_messages else receiver.receive()
            tensors = moved(tuple(carried), stage.device) if moves else tuple(carried)
            if receiver.leases:
                tensors = self._messages.hand(stage.index, "backward", tensors)
                leased |= _memory(tensors)
            if self.observe_message is not None:
                self.observe_message(stage.index, key, micro_batch, (*tensors, weight))
            # `item` would be an operation of torch.
            share = 1.0 if weight is _ONE else float(cast(Tensor, weight).numpy()[0])
            messages[key.edge] = BackwardMessage(
                gradients=tensors[:streams],
                activation=tensors[streams:] or None,
                weight=share,
            )
            del carried, tensors, weight  # else they would keep their slot
        returned = stage.executor.backward(micro_batch, messages)
        for edge, message in returned.items():
            weight = _ONE if message.weight == 1.0 else torch.tensor([message.weight], dtype=torch.float64)
            sent = (*message.gradients, *(message.activation or ()), weight)
            _, sender = stage.outgoing["backward"][edge]
            sender.send(_sendable(sender, sent, leased) if leased else sent)

    def put_back(self, key: ChannelKey, message: EncodedTensors) -> None:
        """Make a message the next one on a channel, behind those that were put back before it."""
        self.put_back_messages.setdefault(key, deque()).append(message)

    def ready(self, key: ChannelKey) -> bool:
        return key in self.put_back_messages or self._channels.receivers[key].ready()

    def receive(self, key: ChannelKey) -> EncodedTensors:
        """Return the oldest message of a channel."""
        return self._take(key, self._channels.receivers[key])

    def _take(self, key: ChannelKey, receiver: Receiver) -> EncodedTensors:
        if key not in self.put_back_messages:
            return receiver.receive()
        put_back = self.put_back_messages[key]
        message = put_back.popleft()
        if not put_back:
            del self.put_back_messages[key]
        return message


def _sendable(sender: Sender, message: EncodedTensors, leased: set[int]) -> EncodedTensors:
    """Return a message, copied where it lies in a slot and would stay in this process."""
    return copied(message) if isinstance(sender, LocalChannel) and leased & _memory(message) else message


def _memory(message: EncodedTensors) -> set[int]:
    """Return where the tensors' memory begins."""
    return {payload(value).untyped_storage().data_ptr() for value in message}
