"""Processes as threads, one of which moves at a time, with device channels between them over what stands for torch.distributed, at its strictest.

Which process moves next, and when one learns what another has done or announced, follows from numbers that are drawn: each mover has a
priority, which is drawn anew now and then. So a process may start when others wait for it already, and may be told as late as can be. A
message passes as late as can be, too: when an end waits for it. Whoever waits where the other end has not enqueued its part yet would let
a device depend on what a host is still to do: that fails. Where nothing can move, and some process has not ended, all stand still, which
is known at once and needs no patience.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from threading import Semaphore, Thread, local
from types import SimpleNamespace
from typing import Any

import torch
from attrs import define, field, frozen
from torch import Tensor

from petra_graph.executor.encoded import EncodedTensors
from petra_graph.executor.stage import StageExecutor
from petra_graph.program.schedule import Policy
from petra_graph.runtime.channels import LocalChannel, read_message, slots, write_message
from petra_graph.runtime.loop import Scheduler
from petra_graph.runtime.nccl import ANNOUNCEMENT, DevicePeer, DeviceReceiver, DeviceSender
from petra_graph.runtime.open_channels import ProcessChannels
from petra_graph.runtime.watchdog import Supervisor

_HERE = local()
"""The process of this thread."""
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


@define(eq=False)
class Fabric:
    """Stands for torch.distributed in `nccl`."""

    groups: list[Group] = field(factory=list)

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


class HostChannel:
    """Both ends of a channel of announcements; what one end does reaches the other through `hand_over`."""

    def __init__(self, capacity: int, hand_over: Callable[[Callable[[], object]], object]) -> None:
        self._slots = slots(capacity, ANNOUNCEMENT.most_bytes)
        self._free, self._full = deque(range(capacity)), deque[int]()
        self._hand_over = hand_over
        self.sender = SimpleNamespace(begin=self.begin, ready=lambda: bool(self._free), send=self.send)

    def begin(self, *_: object) -> None: ...

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


# --- processes -------------------------------------------------------------------------------------------------------


class Standstill(Exception):
    """Nothing can move, and some process has not ended."""


class World:
    """All that moves: processes, and what is on its way to one."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._movers: dict[Process | Late, float] = {}
        """With their priorities."""
        self.processes: list[Process] = []

    def add(self, mover: Process | Late) -> None:
        self._movers[mover] = self._dice.random()

    def run(self) -> None:
        """Let all processes come to their ends; raise what one of them raises, or `Standstill` where they cannot."""
        while able := [mover for mover in self._movers if mover.can_move()]:
            max(able, key=self._movers.__getitem__).move()
            if self._dice.random() < REDRAWN:
                self._movers[self._dice.choice(list(self._movers))] = self._dice.random()
        if waiting := [process for process in self.processes if not process.ended]:
            raise Standstill("; ".join(f"process {process.rank}: {process.waits_for}" for process in waiting))


class Process:
    """A process as a thread, which moves until it waits for something; in a test that fails, it may wait until pytest ends."""

    def __init__(self, world: World, rank: int, body: Callable[[], object]) -> None:
        self.rank, self._body, self.world = rank, body, world
        self.waits_for = "its start"
        self._until: Callable[[], bool] = lambda: True
        self._turn, self._handed_back = Semaphore(0), Semaphore(0)
        self.ended = False
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, daemon=True)
        world.processes.append(self)
        world.add(self)

    def can_move(self) -> bool:
        return not self.ended and self._until()

    def move(self) -> None:
        """Run until the process waits or ends; raise what it raises."""
        if self._thread.ident is None:
            self._thread.start()
        self._turn.release()
        self._handed_back.acquire()
        if self._error is not None:
            raise self._error

    def wait(self, what: str, until: Callable[[], bool]) -> None:
        """Called in the process: let others move until something holds."""
        if not until():
            self.waits_for, self._until = what, until
            self._handed_back.release()
            self._turn.acquire()

    def _run(self) -> None:
        self._turn.acquire()
        _HERE.process = self
        try:
            self._body()
        except BaseException as error:  # noqa: BLE001  raised where the world runs
            self._error = error
        self.ended = True
        self._handed_back.release()


class Late:
    """What one process does for others, each thing done as late as the world lets it be."""

    def __init__(self, world: World, *supervisors: ToldLater) -> None:
        self._pending: deque[Callable[[], object]] = deque()
        self._supervisors = supervisors
        world.add(self)

    def __call__(self, act: Callable[[], object]) -> None:
        self._pending.append(act)

    def can_move(self) -> bool:
        return bool(self._pending)

    def move(self) -> None:
        self._pending.popleft()()
        for supervisor in self._supervisors:
            supervisor.wake()


class ToldLater(Supervisor):
    """A supervisor whose process is told sooner or later what the others announce."""

    def __init__(self, process: Process, others: Sequence[ToldLater]) -> None:
        """Supervise a process; `others` are those of all processes, this one too."""
        super().__init__()
        self.process, self.others = process, others
        self.awake = False
        self.told = Late(process.world, self)

    def check(self) -> None:
        """Return: a failure ends the world."""

    def request_stop(self) -> None:
        self._tell("stop_signal", "SIGINT")

    def stop_after(self, forwards: int) -> None:
        self.stop_at = forwards
        self._tell("stop_at", forwards)

    def _tell(self, name: str, value: Any) -> None:
        for one in self.others:
            one.told(partial(setattr, one, name, value))

    def wake(self) -> None:
        self.awake = True

    def sleep(self) -> None:
        self.process.wait(f"anything ({self.status})", lambda: self.awake)
        self.awake = False


def run(
    executors: Sequence[StageExecutor],
    ranks: Sequence[int],
    fabric: Fabric,
    body: Callable[[Scheduler, ToldLater], Any],
    *,
    seed: int = 0,
    policy: Policy = "static",
) -> Mapping[int, Any]:
    """Let every process do `body` with the scheduler of its stages; return by rank what it returned.

    Args:
        executors: of all stages.
        ranks: the process of each stage.
        fabric: which stands for torch.distributed in `nccl`.

    Raises:
        Standstill: the processes wait for one another.
    """
    world, returned = World(seed), dict[int, Any]()
    programs, size = [executor.program for executor in executors], max(ranks) + 1
    supervisors: list[ToldLater] = []
    channels = [ProcessChannels(programs=programs, ranks=ranks) for _ in range(size)]

    def act(rank: int) -> None:
        own = [executor for executor, host in zip(executors, ranks, strict=True) if host == rank]
        told = supervisors[rank]
        scheduler = Scheduler(own, channels[rank], supervisor=told, policy=policy)
        returned[rank] = body(scheduler, told)

    for rank in range(size):
        supervisors.append(ToldLater(Process(world, rank, partial(act, rank)), supervisors))
    for key, channel in channels[0].channels.items():
        sender, receiver = channels[0].ends(key)
        if sender == receiver:
            channels[sender].senders[key] = channels[sender].receivers[key] = LocalChannel()
            continue
        peer = DevicePeer(rank=0, group=fabric.group(), device=torch.device("cpu"), answered=nullcontext)
        announcements = HostChannel(channel.capacity, Late(world, supervisors[sender], supervisors[receiver]))
        channels[sender].senders[key] = DeviceSender(peer, channel, announcements.sender)
        channels[receiver].receivers[key] = DeviceReceiver(peer, channel, announcements)
    world.run()
    return returned


class AllReduce:
    """Stands for torch.distributed in the threads of one world: sums over its processes."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []

    def all_reduce(self, own: Tensor) -> None:
        process: Process = _HERE.process
        size = len(process.world.processes)
        self._parts.append(own.clone())
        turn = (len(self._parts) - 1) // size
        process.wait("the others' numbers", lambda: len(self._parts) >= (turn + 1) * size)
        own.copy_(torch.stack(self._parts[turn * size : (turn + 1) * size]).sum(0))
