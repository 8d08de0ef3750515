"""The channels of one process: in a queue, in shared memory, or through the process group.

both ends here                               a queue, without limit: the schedule limits what is under way
the other end in a process of this machine   shared memory (`ring`)
elsewhere, or run.transport says so          the process group (`group`)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from attrs import define, field, frozen

from petra_graph.errors import RunFailed
from petra_graph.executor.encoded_tensors import EncodedTensors
from petra_graph.measure.shapes import NodeShapes
from petra_graph.program.channels import ChannelKey, capacity
from petra_graph.program.stage_program import Edge, InputEdge, StageProgram
from petra_graph.runtime.control.world import World
from petra_graph.runtime.transport.local import LocalChannel
from petra_graph.runtime.transport.message_layout import MessageFormat, TensorFormat, stream_formats
from petra_graph.runtime.transport.process_group import GroupReceiver, GroupSender, Peer
from petra_graph.runtime.transport.shared_memory import SharedMemoryReceiver, SharedMemorySender
from petra_graph.runtime.transport.slots import Slots
from petra_graph.runtime.transport.waker import Waker
from petra_graph.spec.model import PrecisionSpec, StoredDtype, Transport

_ATTACH_SECONDS = 300.0
_ROUND_BYTES = 64


class Sender(Protocol):
    """The writing end of a channel."""

    def begin(self, message: MessageFormat) -> None:
        """Send messages of this format from now on."""
        ...

    def has_room(self) -> bool:
        """Whether a message can be sent."""
        ...

    def send(self, carried: EncodedTensors) -> None:
        """Send a message."""
        ...


class Receiver(Protocol):
    """The reading end of a channel."""

    def begin(self, message: MessageFormat, samples: Iterable[int]) -> None:
        """Expect messages of this format with so many samples each."""
        ...

    def ready(self) -> bool:
        """Whether `receive` would return at once."""
        ...

    def receive(self) -> EncodedTensors:
        """Return the oldest message; it may lie in a slot that is taken for as long as anyone refers to it."""
        ...


class Queue(LocalChannel[EncodedTensors]):
    """Both ends of a channel within a process."""

    def begin(self, message: MessageFormat, samples: Iterable[int] = ()) -> None:
        """Any message will do."""

    def has_room(self) -> bool:
        """Whether a message can be sent."""
        return True


@frozen(kw_only=True)
class ChannelTable:
    """Everything about channels that is known before a process starts."""

    programs: Sequence[StageProgram]
    ranks: Sequence[int]
    """Of each stage."""
    shapes: Mapping[str, NodeShapes]
    precision: PrecisionSpec
    batch: int
    """Samples of a training micro-batch."""
    evaluation_batch: int

    @property
    def entries(self) -> Mapping[Edge, InputEdge]:
        """All edges into segments."""
        return {
            entry.edge: entry for program in self.programs for segment in program.segments for entry in segment.inputs
        }

    def channels(self) -> Iterator[_Planned]:
        """Yield all channels, everywhere in the same order."""
        place = {name: program.index - 1 for program in self.programs for name in program.nodes}
        entries = self.entries
        for program in self.programs:
            for edge in program.sends:
                ends = program.index - 1, place[edge.consumer]
                count = capacity(program.depth, self.programs[ends[1]].depth)
                forth = self._forward(entries[edge], self.precision.channel_dtype)
                shown = self._forward(entries[edge], "as-streams")
                back = self._backward(entries[edge])
                most = max(forth.nbytes(self.batch), shown.nbytes(self.evaluation_batch))
                yield _Planned(
                    ChannelKey(edge, "forward"), *self._ranks(*ends), count, most, training=forth, evaluation=shown
                )
                yield _Planned(
                    ChannelKey(edge, "backward"),
                    *self._ranks(*reversed(ends)),
                    count,
                    back.nbytes(self.batch),
                    training=back,
                )

    def _ranks(self, sender: int, receiver: int) -> tuple[int, int]:
        return self.ranks[sender], self.ranks[receiver]

    def _forward(self, entry: InputEdge, stored: StoredDtype) -> MessageFormat:
        return MessageFormat(tensors=self._streams(entry, stored))

    def _backward(self, entry: InputEdge) -> MessageFormat:
        """Return the gradients' format, and the activation's after it."""
        streams = self._streams(entry, self.precision.channel_dtype)
        gradients = tuple(_gradient(stream) for stream in streams)
        return MessageFormat(tensors=gradients + (streams if entry.returns_activation else ()))

    def _streams(self, entry: InputEdge, stored: StoredDtype) -> tuple[TensorFormat, ...]:
        node = self.shapes[entry.edge.producer]
        return stream_formats(node.outputs, node.dtypes, self.precision, stored)


@frozen
class _Planned:
    """One channel, before its ends exist."""

    channel: ChannelKey
    sender: int
    receiver: int
    """Ranks."""
    count: int
    most_bytes: int
    training: MessageFormat = field(kw_only=True)
    evaluation: MessageFormat | None = field(default=None, kw_only=True)

    @property
    def slot_bytes(self) -> int:
        return -(-self.most_bytes // _ROUND_BYTES) * _ROUND_BYTES


@define(kw_only=True)
class ProcessChannels:
    """The ends that a process has."""

    senders: dict[ChannelKey, Sender] = field(factory=dict)
    receivers: dict[ChannelKey, Receiver] = field(factory=dict)
    planned: Mapping[ChannelKey, _Planned]

    def begin_training(self, samples: Sequence[int]) -> None:
        """Get ready for an epoch of micro-batches."""
        for channel, receiver in self.receivers.items():
            receiver.begin(self.planned[channel].training, samples)
        for channel, sender in self.senders.items():
            sender.begin(self.planned[channel].training)

    def begin_evaluation(self, samples: Sequence[int]) -> None:
        """Get ready for batches of so many samples each; nothing goes backward."""
        for channel, receiver in self.receivers.items():
            if (message := self.planned[channel].evaluation) is not None:
                receiver.begin(message, samples)
        for channel, sender in self.senders.items():
            if (message := self.planned[channel].evaluation) is not None:
                sender.begin(message)

    def peer(self, channel: ChannelKey, own: int) -> int:
        """Return the rank of a channel's other end."""
        planned = self.planned[channel]
        return planned.receiver if planned.sender == own else planned.sender


class Hears(Protocol):
    """Who is told of a channel whose other end does not answer."""

    def lost(self, channel: str, rank: int, error: Exception) -> None:
        """Take note of it."""
        ...


def connect(wiring: ChannelTable, world: World, waker: Waker, hears: Hears, transport: Transport) -> ProcessChannels:
    """Build this process's ends; all processes do so at the same time.

    Raises:
        RunFailed: there is no memory for the slots, or another process has not come.
    """
    links = ProcessChannels(planned={planned.channel: planned for planned in wiring.channels()})
    attaching: list[tuple[str, _Planned]] = []
    for tag, planned in enumerate(links.planned.values()):
        channel, name = planned.channel, f"channel/{wiring.ranks[0]}/{tag}"
        if planned.sender == planned.receiver:
            if planned.sender == world.rank:
                links.senders[channel] = links.receivers[channel] = Queue()
        elif world.rank in {planned.sender, planned.receiver}:
            other = links.peer(channel, world.rank)
            if transport != "auto" or not world.share_machine(other):
                _through_group(links, planned, Peer(rank=other, tag=tag), waker, hears)
            elif planned.receiver == world.rank:
                receiver = SharedMemoryReceiver(planned.count, planned.slot_bytes, waker)
                links.receivers[channel] = receiver
                world.store.set(name, receiver.address)
            else:
                attaching.append((name, planned))
    for name, planned in attaching:
        address = world.store.wait(name, _ATTACH_SECONDS, f"{planned.channel}: rank {planned.receiver} is not ready")
        try:
            links.senders[planned.channel] = SharedMemorySender(address, waker)
        except OSError as error:
            raise RunFailed(
                f"{planned.channel}: rank {world.rank} cannot share memory with rank {planned.receiver}: {error}",
                hint='set run.transport = "process-group"',
            ) from error
    return links


def _through_group(links: ProcessChannels, planned: _Planned, peer: Peer, waker: Waker, hears: Hears) -> None:
    def lost(error: Exception) -> None:
        hears.lost(str(planned.channel), peer.rank, error)

    memory = Slots.private(planned.count, planned.slot_bytes)
    if planned.sender == peer.rank:
        links.receivers[planned.channel] = GroupReceiver(peer, memory, waker, lost)
    else:
        links.senders[planned.channel] = GroupSender(peer, memory, waker, lost)


def _gradient(stream: TensorFormat) -> TensorFormat:
    if stream.dtype.is_floating_point:
        return stream
    return TensorFormat(shape=(), dtype=stream.dtype, stored=stream.dtype, channels_last=False, vacant=True)
