"""The channels of one process: which transport serves which channel of the program.

both ends in this process                   a local queue, without limit: the schedule limits what is in flight
the other end on the same machine           shared memory
elsewhere, or where run.transport says so   point-to-point through torch.distributed
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from attrs import define, field

from petra_graph.errors import RunFailed
from petra_graph.executor.encoded_tensors import EncodedTensors
from petra_graph.program.channels import Channel, ChannelKey
from petra_graph.program.cut import Cut
from petra_graph.program.message_layout import MessageLayout
from petra_graph.program.stage_program import StageProgram
from petra_graph.runtime.control.waker import Waker
from petra_graph.runtime.control.world import World
from petra_graph.runtime.transport.local_channel import LocalChannel
from petra_graph.runtime.transport.process_group_channel import Peer, ProcessGroupReceiver, ProcessGroupSender
from petra_graph.runtime.transport.shared_memory_channel import SharedMemoryReceiver, SharedMemorySender
from petra_graph.runtime.transport.slots import Slots
from petra_graph.spec.model import Transport

PeerLost = Callable[[str, int, Exception], None]
"""Called with a channel, the rank of its other end, and what torch raised, where that rank does not answer."""


class Sender(Protocol):
    """The sending end of a channel."""

    def begin(self, layout: MessageLayout) -> None:
        """Send messages of this layout from now on."""
        ...

    def has_room(self) -> bool:
        """Whether a message can be sent."""
        ...

    def send(self, message: EncodedTensors) -> None: ...


class Receiver(Protocol):
    """The receiving end of a channel."""

    leases: bool
    """Messages lie in slots, of which there are few; a slot is taken for as long as a tensor over it lives."""

    def begin(self, layout: MessageLayout, samples: Iterable[int]) -> None:
        """Expect messages of this layout with these numbers of samples."""
        ...

    def ready(self) -> bool:
        """Whether `receive` would return at once."""
        ...

    def receive(self) -> EncodedTensors:
        """Return the oldest message."""
        ...


@define(kw_only=True)
class ProcessChannels:
    """The ends of channels that a process holds."""

    programs: Sequence[StageProgram]
    """Of all stages."""
    ranks: Sequence[int]
    """The process of each stage."""
    senders: dict[ChannelKey, Sender] = field(factory=dict)
    receivers: dict[ChannelKey, Receiver] = field(factory=dict)
    channels: Mapping[ChannelKey, Channel] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.channels = {channel.key: channel for program in self.programs for channel in program.channels}

    def begin_training(self, cut: Cut) -> None:
        """Prepare for the micro-batches around a cut, of which the messages before it have been sent."""
        for key, receiver in self.receivers.items():
            channel = self.channels[key]
            sent = cut.sent(self.programs[channel.sender - 1], channel)
            receiver.begin(channel.training, [channel.training.samples] * (len(cut.micro_batches) - sent))
        for key, sender in self.senders.items():
            sender.begin(self.channels[key].training)

    def begin_evaluation(self, samples: Sequence[int]) -> None:
        """Prepare for batches of these sizes; backward channels carry nothing."""
        for key, receiver in self.receivers.items():
            if (layout := self.channels[key].evaluation) is not None:
                receiver.begin(layout, samples)
        for key, sender in self.senders.items():
            if (layout := self.channels[key].evaluation) is not None:
                sender.begin(layout)

    def ends(self, channel: Channel) -> tuple[int, int]:
        return self.ranks[channel.sender - 1], self.ranks[channel.receiver - 1]

    def peer(self, key: ChannelKey, own: int) -> int:
        """Return the rank of a channel's other end."""
        sender, receiver = self.ends(self.channels[key])
        return receiver if sender == own else sender


def local_channels(programs: Sequence[StageProgram]) -> ProcessChannels:
    """Return the channels of a process that hosts all stages."""
    channels = ProcessChannels(programs=programs, ranks=(0,) * len(programs))
    for key in channels.channels:
        channels.senders[key] = channels.receivers[key] = LocalChannel()
    return channels


def open_channels(
    programs: Sequence[StageProgram],
    ranks: Sequence[int],
    world: World,
    *,
    waker: Waker,
    peer_lost: PeerLost,
    transport: Transport,
) -> ProcessChannels:
    """Open this process's ends; all processes do so at the same time.

    Args:
        waker: wakes this process where a message or room has come.
        peer_lost: called, from any thread, where the other end of a channel does not answer.

    Raises:
        RunFailed: there is no memory for the slots, or another process has not come.
    """
    channels = ProcessChannels(programs=programs, ranks=ranks)
    attaching: list[tuple[str, Channel]] = []
    for tag, channel in enumerate(channels.channels.values()):
        key, name = channel.key, f"channel/{ranks[0]}/{tag}"
        sender, receiver = channels.ends(channel)
        if sender == receiver:
            if sender == world.rank:
                channels.senders[key] = channels.receivers[key] = LocalChannel()
        elif world.rank in {sender, receiver}:
            other = channels.peer(key, world.rank)
            if transport != "auto" or not world.share_machine(other):
                _open_process_group(channels, channel, Peer(rank=other, tag=tag), waker, peer_lost)
            elif receiver == world.rank:
                end = SharedMemoryReceiver(channel.capacity, channel.slot_bytes, waker)
                channels.receivers[key] = end
                world.store.set(name, end.address)
            else:
                attaching.append((name, channel))
    for name, channel in attaching:
        receiver = channels.ends(channel)[1]
        address = world.wait(name)
        if address["process"] != world.neighbours[receiver].process:
            raise RunFailed(f"{channel}: the address in the run's store is not of rank {receiver}'s process")
        try:
            channels.senders[channel.key] = SharedMemorySender(address, waker)
        except OSError as error:
            raise RunFailed(
                f"{channel}: rank {world.rank} cannot share memory with rank {receiver}: {error}",
                hint='set run.transport = "process-group"',
            ) from error
    return channels


def _open_process_group(
    channels: ProcessChannels, channel: Channel, peer: Peer, waker: Waker, peer_lost: PeerLost
) -> None:
    def lost(error: Exception) -> None:
        peer_lost(str(channel), peer.rank, error)

    memory = Slots.private(channel.capacity, channel.slot_bytes)
    if channels.ends(channel)[0] == peer.rank:
        channels.receivers[channel.key] = ProcessGroupReceiver(peer, memory, waker, lost)
    else:
        channels.senders[channel.key] = ProcessGroupSender(peer, memory, waker, lost)
