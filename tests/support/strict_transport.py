"""Processes as threads, one of which moves at a time, with device channels between them over a `Fabric`.

Which process moves next, and when one learns what another has done or announced, follows from numbers that are drawn: each has a priority,
which is drawn anew now and then. So a process may start when others wait for it already, and may be told as late as can be. Where nothing
can move, and some process has not ended, all stand still, which is known at once and needs no patience.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from threading import Semaphore, Thread, local
from typing import Any, NoReturn, Protocol

import torch
from attrs import define, field
from torch import Tensor

from petra_graph.executor.stage import StageExecutor
from petra_graph.program.schedule import Policy
from petra_graph.runtime.channels import LocalChannel
from petra_graph.runtime.loop import Scheduler
from petra_graph.runtime.nccl import DevicePeer, DeviceReceiver, DeviceSender
from petra_graph.runtime.open_channels import ProcessChannels
from petra_graph.runtime.watchdog import Supervisor
from tests.support.device_fabric import Fabric, HostChannel

_HERE = local()
"""The process of this thread."""
REDRAWN = 0.1
"""Of all moves, after which some priority is drawn anew."""


class Standstill(Exception):
    """Nothing can move, and some process has not ended."""


class Stopped(BaseException):
    """Ends a process after the end of its world."""


class Mover(Protocol):
    """Something that moves by itself."""

    def can_move(self) -> bool: ...

    def move(self) -> None: ...


class World:
    """All that moves: processes, communicators, and what processes are told."""

    def __init__(self, seed: int = 0) -> None:
        self._dice = random.Random(seed)
        self._movers: dict[Mover, float] = {}
        """With their priorities."""

    @property
    def processes(self) -> list[Process]:
        return [mover for mover in self._movers if isinstance(mover, Process)]

    def add(self, mover: Mover) -> None:
        self._movers[mover] = self._dice.random()

    def run(self) -> None:
        """Let all processes come to their ends.

        Raises:
            Standstill: they cannot.
            BaseException: what a process raises.
        """
        processes = self.processes
        try:
            while able := [mover for mover in self._movers if mover.can_move()]:
                max(able, key=self._movers.__getitem__).move()
                if self._dice.random() < REDRAWN:
                    self._movers[self._dice.choice(list(self._movers))] = self._dice.random()
            if waiting := [process for process in processes if not process.ended]:
                raise Standstill("; ".join(f"process {process.rank}: {process.waits_for}" for process in waiting))
        finally:
            for process in processes:
                process.stop()


class Process:
    """A process as a thread, which moves until it waits for something."""

    def __init__(self, world: World, rank: int, body: Callable[[], object]) -> None:
        self.rank, self._body, self._world = rank, body, world
        self.waits_for = "its start"
        self._until: Callable[[], bool] = lambda: True
        self._turn, self._handed_back = Semaphore(0), Semaphore(0)
        self._stopped = False
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, daemon=True)
        world.add(self)

    @property
    def ended(self) -> bool:
        return self._thread.ident is not None and not self._thread.is_alive()

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
        if self._until is _ended:
            self._thread.join()

    def wait(self, what: str, until: Callable[[], bool]) -> None:
        """Called in the process: let others move until something holds."""
        if not until():
            self.waits_for, self._until = what, until
            self._handed_back.release()
            self._turn.acquire()
            if self._stopped:
                raise Stopped

    def stop(self) -> None:
        self._stopped = True
        if self._thread.ident is not None and self._thread.is_alive():
            self._turn.release()
            self._thread.join()

    def _run(self) -> None:
        self._turn.acquire()
        _HERE.process = self
        try:
            self._body()
        except Stopped:
            return
        except BaseException as error:  # noqa: BLE001  raised where the world runs
            self._error = error
        self._until = _ended
        self._handed_back.release()


def _ended() -> bool:
    return False


@define(eq=False)
class Late:
    """What one process does for another, each thing done as late as the world lets it be."""

    supervisors: Sequence[ToldLater]
    _pending: deque[Callable[[], object]] = field(factory=deque)

    def __call__(self, act: Callable[[], object]) -> None:
        self._pending.append(act)

    def can_move(self) -> bool:
        return bool(self._pending)

    def move(self) -> None:
        self._pending.popleft()()
        for supervisor in self.supervisors:
            supervisor.wake()


class ToldLater(Supervisor):
    """A supervisor whose process is told sooner or later what the others announce."""

    def __init__(self, process: Process, others: Sequence[ToldLater]) -> None:
        """Supervise a process; `others` are those of all processes, this one too."""
        super().__init__()
        self.process, self.others = process, others
        self.awake = False
        self._told: deque[tuple[str, Any]] = deque()

    def announce_cut(self, at: int) -> None:
        raise NotImplementedError

    def check(self) -> None:
        """Return: a failure ends the world."""

    def request_stop(self) -> None:
        self._tell("stop_signal", "SIGINT")

    def stop_after(self, forwards: int) -> None:
        self.stop_at = forwards
        self._tell("stop_at", forwards)

    def _tell(self, name: str, value: Any) -> None:
        for one in self.others:
            one._told.append((name, value))

    def can_move(self) -> bool:
        return bool(self._told)

    def move(self) -> None:
        setattr(self, *self._told.popleft())
        self.wake()

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
    global_clip: bool = False,
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
    programs = [executor.program for executor in executors]
    size = max(ranks) + 1
    supervisors: list[ToldLater] = []

    def process_of(rank: int) -> Process:
        def act() -> None:
            own = [executor for executor, host in zip(executors, ranks, strict=True) if host == rank]
            scheduler = Scheduler(
                own,
                channels[rank],
                supervisor=supervisors[rank],
                policy=policy,
                global_clip=global_clip,
                size=size,
            )
            returned[rank] = body(scheduler, supervisors[rank])

        return Process(world, rank, act)

    for rank in range(size):
        supervisors.append(ToldLater(process_of(rank), supervisors))
        world.add(supervisors[rank])
    channels = [ProcessChannels(programs=programs, ranks=ranks) for _ in range(size)]
    for key, channel in channels[0].channels.items():
        sender, receiver = channels[0].ends(channel)
        if sender == receiver:
            channels[sender].senders[key] = channels[sender].receivers[key] = LocalChannel()
            continue
        late = Late([supervisors[sender], supervisors[receiver]])
        world.add(late)
        peer = DevicePeer(rank=0, group=fabric.group(), device=torch.device("cpu"), lost=_raised)
        announcements = HostChannel(channel.capacity, late)
        channels[sender].senders[key] = DeviceSender(peer, channel, announcements)
        channels[receiver].receivers[key] = DeviceReceiver(peer, channel, announcements)
    world.run()
    return returned


def _raised(error: Exception) -> NoReturn:
    raise error


class AllReduce:
    """Stands for torch.distributed in the threads of one world: sums over its processes."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []

    def all_reduce(self, own: Tensor) -> None:
        process: Process = _HERE.process
        size = len(process._world.processes)
        self._parts.append(own.clone())
        turn = (len(self._parts) - 1) // size
        process.wait("the others' numbers", lambda: len(self._parts) >= (turn + 1) * size)
        own.copy_(torch.stack(self._parts[turn * size : (turn + 1) * size]).sum(0))
