"""Device channels between stages, over what stands for torch.distributed, at its strictest.

A message passes as late as can be: when an end waits for it. Whoever waits where the other end has not enqueued its part yet would let a
device depend on what a host is still to do: that fails. Hosts learn of one another's announcements late, by chance.
"""

import random
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from attrs import define, field, frozen
from torch import Tensor

from petra_graph.executor.encoded import EncodedTensors
from petra_graph.executor.stage import StageExecutor
from petra_graph.program.schedule import Policy
from petra_graph.runtime.loop import Scheduler
from petra_graph.runtime.nccl import DevicePeer, DeviceReceiver, DeviceSender
from petra_graph.runtime.open_channels import local_channels
from petra_graph.runtime.watchdog import Supervisor


@define(eq=False)
class Group:
    """What both ends of a channel have enqueued, in their orders."""

    sent: list[Tensor] = field(factory=list)
    received: list[Tensor] = field(factory=list)
    passed: int = 0
    awaited: set[int] = field(factory=set)
    """Where the memory begins of what was waited for."""


@frozen(eq=False)
class Work:
    group: Group
    number: int
    memory: Tensor

    def wait(self) -> None:
        """Let the messages up to this one pass."""
        of = self.group
        assert self.number < min(len(of.sent), len(of.received)), "a device waits for what no host has enqueued"
        while of.passed <= self.number:
            of.received[of.passed].copy_(of.sent[of.passed])
            of.passed += 1
        of.awaited.add(self.memory.data_ptr())


class Fabric:
    """Stands for torch.distributed in `nccl`."""

    def isend(self, memory: Tensor, _rank: int, *, group: Group) -> Work:
        return self._posted(group, group.sent, memory)

    def irecv(self, memory: Tensor, _rank: int, *, group: Group) -> Work:
        return self._posted(group, group.received, memory)

    send, recv = isend, irecv

    def _posted(self, group: Group, end: list[Tensor], memory: Tensor) -> Work:
        place = memory.data_ptr()
        used = any(other.data_ptr() == place for other in end[1:])  # behind the byte that connects
        assert not used or place in group.awaited, "memory is used again that a message may still need"
        group.awaited.discard(place)
        end.append(memory)
        return Work(group, len(end) - 1, memory)


class Announcements:
    """Both ends of a channel between hosts, each of which looks in vain now and then."""

    def __init__(self, capacity: int, dice: random.Random) -> None:
        self._room, self._full, self._dice = capacity, deque[EncodedTensors](), dice
        self.sender = SimpleNamespace(begin=self.begin, ready=lambda: self._seen(self._room), send=self.send)

    def _seen(self, count: int) -> bool:
        return count > 0 and self._dice.random() < 0.5

    def begin(self, *_: object) -> None: ...

    def send(self, message: EncodedTensors) -> None:
        self._room -= 1
        self._full.append(message)

    def ready(self) -> bool:
        return self._seen(len(self._full))

    def receive(self) -> EncodedTensors:
        self._room += 1
        return self._full.popleft()


class Patient(Supervisor):
    """Looks again where every stage waits."""

    def sleep(self) -> None: ...


def scheduler(executors: Sequence[StageExecutor], seed: int, policy: Policy) -> tuple[Scheduler, list[Group]]:
    """Return a scheduler of all stages, each on a device of its own, and what passes between these."""
    dice, groups = random.Random(seed), list[Group]()
    channels = local_channels([executor.program for executor in executors])
    for key, channel in channels.channels.items():
        groups.append(group := Group())
        of_group: Any = group
        peer = DevicePeer(rank=0, group=of_group, device=torch.device("cpu"), answered=nullcontext)
        announcements = Announcements(channel.capacity, dice)
        channels.senders[key] = DeviceSender(peer, channel, announcements.sender)
        channels.receivers[key] = DeviceReceiver(peer, channel, announcements)
    return Scheduler(executors, channels, supervisor=Patient(), policy=policy), groups
