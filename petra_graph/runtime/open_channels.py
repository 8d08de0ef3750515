"""The ends of channels that a process holds: queues within it, shared memory on its machine, or what `run.transport` asks for.

Messages that NCCL carries from device to device are announced between hosts, by what would carry the messages otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import repeat

import torch

from petra_graph.executor.encoded import EncodedTensors
from petra_graph.program.channels import ChannelKey
from petra_graph.program.cut import Cut
from petra_graph.program.stage_program import StageProgram
from petra_graph.runtime.channels import (
    LocalChannel,
    ProcessGroupReceiver,
    PutBack,
    Receiver,
    Sender,
    process_group_sender,
    shared_memory_receiver,
    shared_memory_sender,
    slots,
)
from petra_graph.runtime.nccl import DevicePeer, DeviceReceiver, DeviceSender, announcing
from petra_graph.runtime.watchdog import Watchdog
from petra_graph.runtime.world import World
from petra_graph.spec.model import Transport


class ProcessChannels:
    """The ends of channels that a process holds."""

    def __init__(self, programs: Sequence[StageProgram], ranks: Sequence[int]) -> None:
        """Hold no ends yet; programs are of all stages, and ranks the process of each."""
        self.programs, self.ranks = programs, ranks
        self.channels = {channel.key: channel for program in programs for channel in program.channels}
        self.senders: dict[ChannelKey, Sender] = {}
        self.receivers: dict[ChannelKey, Receiver] = {}

    def begin_training(self, cut: Cut) -> None:
        """Prepare for the micro-batches around a cut, of which the messages before it have been sent."""
        for key, end in (*self.receivers.items(), *self.senders.items()):
            channel = self.channels[key]
            sent = cut.done(self.programs[channel.sender - 1], channel.key.direction)
            end.begin(repeat((channel.training, channel.training.samples), len(cut.micro_batches) - sent))

    def begin_evaluation(self, samples: Sequence[int]) -> None:
        """Prepare for batches of these sizes; backward channels carry nothing."""
        for key, end in (*self.receivers.items(), *self.senders.items()):
            if (layout := self.channels[key].evaluation) is not None:
                end.begin(zip(repeat(layout), samples, strict=False))

    def put_back(self, key: ChannelKey, message: EncodedTensors) -> None:
        """Make a message the next one on a channel, behind those that were put back before it."""
        end = self.receivers[key]
        if not isinstance(end, PutBack):
            end = self.receivers[key] = PutBack(end)
        end.messages.append(message)

    def is_local(self, key: ChannelKey) -> bool:
        """Whether one process has both ends."""
        return len(set(self.ends(key))) == 1

    def ends(self, key: ChannelKey) -> tuple[int, int]:
        """Return the ranks of the sender and of the receiver."""
        channel = self.channels[key]
        return self.ranks[channel.sender - 1], self.ranks[channel.receiver - 1]


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
    watchdog: Watchdog,
    *,
    transport: Transport,
    device: str = "cpu",
) -> ProcessChannels:
    """Open this process's ends, whose stages are on a device; all processes do so at the same time.

    RunFailed: there is no memory for the slots, or another process has not come; SpecError: torch has no NCCL.
    """
    channels, waker = ProcessChannels(programs=programs, ranks=ranks), watchdog.waker
    attaching: list[tuple[ChannelKey, str]] = []
    for tag, (key, channel) in enumerate(channels.channels.items()):
        ends = channels.ends(key)
        if world.rank not in ends:
            continue
        receives, other = ends[1] == world.rank, sum(ends) - world.rank
        name = f"channel/{ranks[0]}/{tag}"
        if transport == "nccl":
            channel = announcing(channel)  # noqa: PLW2901  what goes between hosts
        if other == world.rank:
            channels.senders[key] = channels.receivers[key] = LocalChannel()
        elif transport == "process-group" or not world.share_machine(other):
            through = other, tag, slots(channel.capacity, channel.slot_bytes), waker
            lost = partial(watchdog.lost, str(channel), other)
            if receives:
                channels.receivers[key] = ProcessGroupReceiver(*through, lost)
            else:
                channels.senders[key] = process_group_sender(*through, lost)
        elif receives:
            channels.receivers[key], address = shared_memory_receiver(channel.capacity, channel.slot_bytes, waker)
            world.store.set(name, address)
        else:
            attaching.append((key, name))
    for key, name in attaching:  # when every receiver has made its memory: none waits for another one's
        channels.senders[key] = shared_memory_sender(world.wait(name), waker)
    if transport == "nccl":
        _join_devices(channels, world, watchdog, torch.device(device))
    return channels


def _join_devices(channels: ProcessChannels, world: World, watchdog: Watchdog, device: torch.device) -> None:
    """Let the channels to other processes announce messages that go from device to device.

    All processes make the groups of all replicas in the order of the program's channels, and connect their own at once.
    """
    processes = len(set(channels.ranks))
    for key, channel in channels.channels.items():
        ends = channels.ends(key)
        pairs = [[first + rank % processes for rank in ends] for first in range(0, world.size, processes)]
        made = [] if channels.is_local(key) else [world.group(pair, device.type) for pair in pairs]
        for group in filter(None, made):
            answered, other = partial(watchdog.answered, str(key), ends), sum(ends) - world.rank
            peer = DevicePeer(rank=other, group=group, device=device, answered=answered)
            if ends[0] == world.rank:
                channels.senders[key] = DeviceSender(peer, channel, channels.senders[key])
            else:
                channels.receivers[key] = DeviceReceiver(peer, channel, channels.receivers[key])
