"""The ends of channels that a process holds: queues within it, shared memory on its machine, or what `run.transport` asks for.

Messages that NCCL carries from device to device are announced between hosts, by what would carry the messages otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import repeat

import torch
from attrs import define, field

from petra_graph.executor.encoded import EncodedTensors
from petra_graph.program.channels import Channel, ChannelKey
from petra_graph.program.cut import Cut
from petra_graph.program.stage_program import StageProgram
from petra_graph.runtime.channels import (
    LocalChannel,
    ProcessGroupReceiver,
    ProcessGroupSender,
    PutBack,
    Receiver,
    Sender,
    SharedMemoryReceiver,
    SharedMemorySender,
    slots,
)
from petra_graph.runtime.nccl import DevicePeer, DeviceReceiver, DeviceSender, announcing
from petra_graph.runtime.waiting import Waker, wait_for_failure
from petra_graph.runtime.world import World
from petra_graph.spec.run_tables import Transport

PeerLost = Callable[[str, int, Exception], None]
"""Called with a channel, the rank of its other end, and what torch raised, where that rank does not answer."""


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
        for end in (self.receivers, self.senders):
            for key in end:
                channel = self.channels[key]
                sent = cut.sent(self.programs[channel.sender - 1], channel)
                form = channel.training, channel.training.samples
                end[key].begin(repeat(form, len(cut.micro_batches) - sent))

    def begin_evaluation(self, samples: Sequence[int]) -> None:
        """Prepare for batches of these sizes; backward channels carry nothing."""
        for end in (self.receivers, self.senders):
            for key in end:
                if (layout := self.channels[key].evaluation) is not None:
                    end[key].begin(zip(repeat(layout), samples, strict=False))

    def put_back(self, key: ChannelKey, message: EncodedTensors) -> None:
        """Make a message the next one on a channel, behind those that were put back before it."""
        end = self.receivers[key]
        if not isinstance(end, PutBack):
            end = self.receivers[key] = PutBack(end)
        end.messages.append(message)

    def is_local(self, key: ChannelKey) -> bool:
        """Whether one process has both ends."""
        sender, receiver = self.ends(self.channels[key])
        return sender == receiver

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
    device: str = "cpu",
) -> ProcessChannels:
    """Open this process's ends; all processes do so at the same time.

    Args:
        device: of this process's stages, in whose memory messages lie where they go from device to device.
        waker: wakes this process where a message or room has come.
        peer_lost: called, from any thread, where the other end of a channel does not answer.

    Raises:
        RunFailed: there is no memory for the slots, or another process has not come.
        SpecError: torch has no NCCL.
    """
    channels, nccl = ProcessChannels(programs=programs, ranks=ranks), transport == "nccl"
    attaching: list[tuple[str, Channel]] = []
    for tag, channel in enumerate(channels.channels.values()):
        key, ends, name = channel.key, channels.ends(channel), f"channel/{ranks[0]}/{tag}"
        if world.rank not in ends:
            continue
        if nccl:
            channel = announcing(channel)  # noqa: PLW2901  what goes between hosts
        other = channels.peer(key, world.rank)
        lost = partial(peer_lost, str(channel), other)
        shares_memory = transport != "process-group" and world.share_machine(other)
        if other == world.rank:
            channels.senders[key] = channels.receivers[key] = LocalChannel()
        elif not shares_memory:
            memory = slots(channel.capacity, channel.slot_bytes)
            if ends[1] == world.rank:
                channels.receivers[key] = ProcessGroupReceiver(other, tag, memory, waker, lost)
            else:
                channels.senders[key] = ProcessGroupSender(other, tag, memory, waker, lost)
        elif ends[1] == world.rank:
            end = channels.receivers[key] = SharedMemoryReceiver(channel.capacity, channel.slot_bytes, waker)
            world.store.set(name, end.address)
        else:
            attaching.append((name, channel))
    for name, channel in attaching:  # when every receiver has made its memory: none waits for another one's
        channels.senders[channel.key] = SharedMemorySender(world.wait(name), waker)
    if nccl:
        _join_devices(channels, world, torch.device(device), peer_lost)
    return channels


def _join_devices(channels: ProcessChannels, world: World, device: torch.device, peer_lost: PeerLost) -> None:
    """Let the channels to other processes announce messages that go from device to device.

    All processes make the groups of all replicas in the order of the program's channels, and connect their own at once.
    """
    processes = len(set(channels.ranks))
    for key, channel in channels.channels.items():
        ends = channels.ends(channel)
        if len(set(ends)) == 1:
            continue
        pairs = [[first + rank % processes for rank in ends] for first in range(0, world.size, processes)]
        group = next(filter(None, [world.group(pair, device.type) for pair in pairs]), None)
        if group is None:
            continue
        other = channels.peer(key, world.rank)

        def lost(error: Exception, name: str = str(key), other: int = other) -> None:
            peer_lost(name, other, error)
            wait_for_failure(world.check)

        peer = DevicePeer(rank=other, group=group, device=device, lost=lost)
        if ends[0] == world.rank:
            channels.senders[key] = DeviceSender(peer, channel, channels.senders[key])
        else:
            channels.receivers[key] = DeviceReceiver(peer, channel, channels.receivers[key])
