"""Stands for torch.distributed between device channels of one process, at its strictest.

A message passes as late as can be: when an end waits for it. Whoever waits where the other end has not enqueued its part yet would let a
device depend on what a host is still to do: that fails.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from attrs import define, field, frozen
from torch import Tensor

from petra_graph.executor.encoded import EncodedTensors
from petra_graph.runtime.channels import read_message, slots, write_message
from petra_graph.runtime.nccl import ANNOUNCEMENT


@define(eq=False)
class Group:
    """What both ends have enqueued, in their orders."""

    sent: list[Tensor] = field(factory=list)
    received: list[Tensor] = field(factory=list)
    passed: int = 0
    awaited: set[int] = field(factory=set)
    """Where the memory begins of what was waited for."""

    def let_pass(self, number: int) -> None:
        """Let the messages up to one pass."""
        assert number < min(len(self.sent), len(self.received)), "a device waits for what no host has enqueued"
        while self.passed <= number:
            self.received[self.passed].copy_(self.sent[self.passed])
            self.passed += 1


@frozen(eq=False)
class Work:
    group: Group
    number: int

    memory: Tensor

    def wait(self) -> None:
        self.group.let_pass(self.number)
        self.group.awaited.add(self.memory.data_ptr())


@define(eq=False)
class Fabric:
    broken: bool = False
    bytes_sent: list[int] = field(factory=list)
    groups: list[Group] = field(factory=list)

    def group(self) -> Any:
        self.groups.append(Group())
        return self.groups[-1]

    def isend(self, memory: Tensor, _rank: int, *, group: Group) -> Work:
        self.bytes_sent.append(len(memory))
        return self._posted(group, group.sent, memory)

    def irecv(self, memory: Tensor, _rank: int, *, group: Group) -> Work:
        return self._posted(group, group.received, memory)

    def send(self, memory: Tensor, rank: int, *, group: Group) -> None:
        self.isend(memory, rank, group=group)

    def recv(self, memory: Tensor, rank: int, *, group: Group) -> None:
        self.irecv(memory, rank, group=group)

    def _posted(self, group: Group, end: list[Tensor], memory: Tensor) -> Work:
        if self.broken:
            raise RuntimeError("connection closed")
        place = memory.data_ptr()
        used = any(other.data_ptr() == place for other in end[1:])  # behind the byte that connects
        assert not used or place in group.awaited, "memory is used again that a message may still need"
        group.awaited.discard(place)
        end.append(memory)
        return Work(group, len(end) - 1, memory)


class HostChannel:
    """Both ends of a channel of announcements; what one end does reaches the other through `hand_over`, at once unless it is replaced."""

    def __init__(self, capacity: int, hand_over: Callable[[Callable[[], object]], object] = lambda act: act()) -> None:
        self._slots = slots(capacity, ANNOUNCEMENT.most_bytes)
        self._free, self._full = deque(range(capacity)), deque[int]()
        self._hand_over = hand_over

    def begin(self, *_: object) -> None: ...

    def has_room(self) -> bool:
        return bool(self._free)

    def send(self, message: EncodedTensors) -> None:
        slot = self._free.popleft()
        write_message(ANNOUNCEMENT, self._slots[slot], message)
        self._hand_over(lambda: self._full.append(slot))

    def ready(self) -> bool:
        return bool(self._full)

    def receive(self) -> EncodedTensors:
        slot = self._full.popleft()
        message = read_message(ANNOUNCEMENT, self._slots[slot], 0)
        self._hand_over(lambda: self._free.append(slot))
        return message
