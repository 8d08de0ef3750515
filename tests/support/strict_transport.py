"""Processes as threads, one of which moves at a time, with device channels between them over what stands for torch.distributed, at its strictest.

Which process moves next, and when one learns what another has done, follows from priorities that are drawn anew now and then: so a process
may start when others wait for it already, and may be told as late as can be. A message passes as late as can be, too: when an end waits for
it. Whoever waits where the other end has not enqueued its part yet would let a device depend on what a host is still to do: that fails.
Where nothing can move, and some process has not ended, all stand still, which is known at once and needs no patience.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from threading import Semaphore, Thread
from types import SimpleNamespace
from typing import Any

import torch
from attrs import define, field, frozen
from torch import Tensor

from petra_graph.executor.encoded import EncodedTensors
from petra_graph.executor.stage import StageExecutor
from petra_graph.program.schedule import Policy
from petra_graph.runtime.channels import LocalChannel
from petra_graph.runtime.loop import Scheduler
from petra_graph.runtime.nccl import DevicePeer, DeviceReceiver, DeviceSender
from petra_graph.runtime.open_channels import ProcessChannels
from petra_graph.runtime.watchdog import Supervisor

REDRAWN = 0.1
"""Of all moves, after which some priority is drawn anew."""

# --- messages between devices ----------------------------------------------------------------------------------------


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

    def __init__(self) -> None:
        self.groups: list[Group] = []

    def group(self) -> Any:
        self.groups.append(Group())
        return self.groups[-1]

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
    """Both ends of a channel between hosts; what one end does reaches the other later."""

    def __init__(self, capacity: int, later: Later) -> None:
        self._room, self._full, self._later = capacity, deque[EncodedTensors](), later
        self.sender = SimpleNamespace(begin=self.begin, ready=lambda: self._room > 0, send=self.send)

    def begin(self, *_: object) -> None: ...

    def send(self, message: EncodedTensors) -> None:
        self._room -= 1
        self._later.acts.append(partial(self._full.append, message))

    def ready(self) -> bool:
        return bool(self._full)

    def receive(self) -> EncodedTensors:
        self._later.acts.append(self._give_room)
        return self._full.popleft()

    def _give_room(self) -> None:
        self._room += 1


# --- processes -------------------------------------------------------------------------------------------------------


class Process(Supervisor):
    """A process as a thread, which moves until it waits for something; in a test that fails, it may wait until pytest ends."""

    def __init__(self, body: Callable[[], object]) -> None:
        super().__init__()
        self._body, self.awake, self.ended = body, True, False
        self._turn, self._handed_back = Semaphore(0), Semaphore(0)
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def can_move(self) -> bool:
        return self.awake and not self.ended

    def move(self) -> None:
        """Run until the process sleeps or ends; raise what it raises."""
        self._turn.release()
        self._handed_back.acquire()
        if self._error is not None:
            raise self._error

    def check(self) -> None:
        """Return: a failure ends the world."""

    def sleep(self) -> None:
        """Called in the process: let others move until one of them has done something for this one."""
        self.awake = False
        self._handed_back.release()
        self._turn.acquire()

    def _run(self) -> None:
        self._turn.acquire()
        try:
            self._body()
        except BaseException as error:  # noqa: BLE001  raised where the world runs
            self._error = error
        self.ended = True
        self._handed_back.release()


class Later:
    """What processes do for one another, each thing done as late as the priorities let it be."""

    def __init__(self, *told: Process) -> None:
        self.acts, self._told = deque[Callable[[], object]](), told

    def can_move(self) -> bool:
        return bool(self.acts)

    def move(self) -> None:
        self.acts.popleft()()
        for process in self._told:
            process.awake = True


def run(
    executors: Sequence[StageExecutor],
    ranks: Sequence[int],
    fabric: Fabric,
    body: Callable[[Scheduler], Any],
    *,
    seed: int,
    policy: Policy,
) -> Mapping[int, Any]:
    """Let every process do `body` with the scheduler of its stages; return by rank what it returned.

    Args:
        executors: of all stages.
        ranks: the process of each stage.
        fabric: which stands for torch.distributed in `nccl`.
    """
    programs, size, returned = [executor.program for executor in executors], max(ranks) + 1, dict[int, Any]()
    channels = [ProcessChannels(programs=programs, ranks=ranks) for _ in range(size)]

    def act(rank: int) -> None:
        own = [executor for executor, host in zip(executors, ranks, strict=True) if host == rank]
        returned[rank] = body(Scheduler(own, channels[rank], supervisor=processes[rank], policy=policy))

    processes = [Process(partial(act, rank)) for rank in range(size)]
    movers: list[Process | Later] = [*processes]
    for key, channel in channels[0].channels.items():
        sender, receiver = channels[0].ends(key)
        if sender == receiver:
            channels[sender].senders[key] = channels[sender].receivers[key] = LocalChannel()
            continue
        movers.append(later := Later(processes[sender], processes[receiver]))
        peer = DevicePeer(rank=0, group=fabric.group(), device=torch.device("cpu"), answered=nullcontext)
        announcements = Announcements(channel.capacity, later)
        channels[sender].senders[key] = DeviceSender(peer, channel, announcements.sender)
        channels[receiver].receivers[key] = DeviceReceiver(peer, channel, announcements)
    dice = random.Random(seed)
    priorities = {mover: dice.random() for mover in movers}
    while able := [mover for mover in movers if mover.can_move()]:
        max(able, key=priorities.__getitem__).move()
        if dice.random() < REDRAWN:
            priorities[dice.choice(movers)] = dice.random()
    assert all(process.ended for process in processes), f"they wait for one another: {[p.status for p in processes]}"
    return returned
