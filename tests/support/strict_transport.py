"""A transport that keeps the promises of NCCL and nothing more, between threads one of which moves at a time.

A send waits on its stream until the matching receive is posted; a stream does one operation after another, and so does each end of a
communicator, which matches messages by their order alone. Receives are posted ahead, as many as the channel's capacity, into memory that
is allocated once. Whoever computes waits for a message, or for its only slot to be free, in the middle of an operation, as a device does.

Which process or communicator moves next follows from numbers that are drawn: each has a priority, which is drawn anew now and then. So a
process may start when others wait for it already, and a message may come as late as can be. Where nothing can move, and some process
has not ended, all stand still, which is known at once and needs no patience.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Semaphore, Thread, local
from typing import Any, Literal, NoReturn, Protocol

import torch
from attrs import define, evolve, field, frozen
from torch import Tensor

from petra_graph.executor.encoded_tensors import EncodedTensors
from petra_graph.executor.stage_executor import StageExecutor
from petra_graph.program.channels import Channel, ChannelKey
from petra_graph.program.message_layout import MessageLayout
from petra_graph.program.schedule import Policy
from petra_graph.runtime.control.supervisor import Supervisor
from petra_graph.runtime.scheduler.scheduler import Scheduler
from petra_graph.runtime.transport.channel import LocalChannel
from petra_graph.runtime.transport.device_channel import DevicePeer, DeviceReceiver, DeviceSender
from petra_graph.runtime.transport.message_slots import Slots, read_message, write_message
from petra_graph.runtime.transport.process_channels import ProcessChannels
from tests.support.device_fabric import Fabric, HostChannel
from tests.support.stream_orders import COMPUTE, Orders, StreamOperation

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
        self.done: list[str] = []
        """What it enqueued and read, as words."""
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
class Stream:
    """Operations of a process that are done one after another."""

    queue: deque[Posted] = field(factory=deque)


@define(eq=False)
class Posted:
    """A send or a receive."""

    kind: Literal["send", "receive"]
    stream: Stream
    layout: MessageLayout
    memory: Tensor
    done: bool = False


class Communicator:
    """Connects two processes; each has a queue of what it posted."""

    def __init__(self, world: World, supervisors: Sequence[ToldLater]) -> None:
        self._supervisors = supervisors
        self._queues: dict[int, deque[Posted]] = {one.process.rank: deque() for one in supervisors}
        world.add(self)

    def post(self, rank: int, posted: Posted) -> Posted:
        self._queues[rank].append(posted)
        posted.stream.queue.append(posted)
        return posted

    def can_move(self) -> bool:
        """Whether both ends have come to a send and a receive."""
        heads = [queue[0] for queue in self._queues.values() if queue]
        return {posted.kind for posted in heads} == {"send", "receive"} and all(
            posted.stream.queue[0] is posted for posted in heads
        )

    def move(self) -> None:
        """Let a message pass."""
        one, other = (queue.popleft() for queue in self._queues.values())
        sent, received = (one, other) if one.kind == "send" else (other, one)
        assert (sent.layout, len(sent.memory)) == (received.layout, len(received.memory)), "another message is received"
        received.memory.copy_(sent.memory)
        for posted in (sent, received):
            posted.stream.queue.popleft()
            posted.done = True
        for supervisor in self._supervisors:
            supervisor.wake()


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


class Waits(Protocol):
    """A process that can wait in the middle of an operation."""

    rank: int
    done: list[str]

    def wait(self, what: str, until: Callable[[], bool]) -> None: ...


class Posts(Protocol):
    """An end of a communicator."""

    def post(self, rank: int, posted: Posted) -> Posted: ...


class StrictSender:
    """The sending end, with one slot."""

    def __init__(self, process: Waits, communicator: Posts, channel: Channel, *, waits: bool) -> None:
        self._process, self._communicator, self._name = process, communicator, str(channel)
        self._waits = waits
        self._memory = Slots.private(1, channel.slot_bytes).flat(0)
        self._layout, self._stream = MessageLayout(), Stream()
        self._last: Posted | None = None

    def begin(self, layout: MessageLayout) -> None:
        self._layout = layout

    def has_room(self) -> bool:
        """Say yes: the host queues the operation, and the device waits for the slot."""
        return True

    def send(self, message: EncodedTensors) -> None:
        if self._last is not None:
            self._wait(self._last)
        size = write_message(self._layout, self._memory, message)
        self._process.done.append(f"send {self._name}")
        posted = Posted("send", self._stream, self._layout, self._memory[:size])
        self._last = self._communicator.post(self._process.rank, posted)
        if self._waits:
            self._wait(self._last)

    def _wait(self, posted: Posted) -> None:
        self._process.wait(f"{self._name} to be sent", lambda: posted.done)


class StrictReceiver:
    """The receiving end, which posts receives ahead."""

    leases = True

    def __init__(self, process: Waits, communicator: Posts, channel: Channel, *, ahead: bool, awaited: bool) -> None:
        """Begin.

        Args:
            ahead: whether receives are posted ahead, or each where it is waited for.
            awaited: whether a message is ready when it has come, or already when its receive is posted.
        """
        self._process, self._communicator, self._name = process, communicator, str(channel)
        self._ahead, self._awaited = ahead, awaited
        self._slots = Slots.private(channel.capacity, channel.slot_bytes)
        self._free: deque[int] = deque(range(channel.capacity))
        self._expected: deque[tuple[MessageLayout, int]] = deque()
        self._posted: deque[tuple[Posted, int, int]] = deque()
        """With the slot and the number of samples."""
        self._stream = Stream()

    def begin(self, layout: MessageLayout, samples: Iterable[int]) -> None:
        assert not self._expected, "messages that have not come"
        assert not self._posted, "messages that have not been read"
        self._expected.extend((layout, size) for size in samples)
        self._post_ahead()

    def ready(self) -> bool:
        if not self._ahead:
            return bool(self._expected)
        return bool(self._posted) and (self._posted[0][0].done or not self._awaited)

    def receive(self) -> EncodedTensors:
        if not self._ahead:
            self._post()
        posted, slot, samples = self._posted.popleft()
        self._process.wait(f"{self._name} to come", lambda: posted.done)
        self._process.done.append(f"read {self._name}")
        return read_message(posted.layout, self._slots.lease(slot, self._release), samples)

    def _release(self, slot: int) -> None:
        self._free.append(slot)
        self._post_ahead()

    def _post_ahead(self) -> None:
        while self._ahead and self._free and self._expected:
            self._post()

    def _post(self) -> None:
        (layout, samples), slot = self._expected.popleft(), self._free.popleft()
        memory = self._slots.flat(slot)[: layout.extents(samples)[1]]
        self._process.done.append(f"receive {self._name}")
        posted = self._communicator.post(self._process.rank, Posted("receive", self._stream, layout, memory))
        self._posted.append((posted, slot, samples))


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


@frozen(kw_only=True)
class Wiring:
    """How channels become streams and communicators; by default as `stream_orders` says."""

    ahead: bool = True
    """Receives are posted ahead; else each is posted where it is waited for."""
    sends_on_compute: bool = False
    """Sends are on the stream of the operations, which wait for them."""
    forwards_awaited: bool = True
    """A process begins a forward when its messages have come; else when their receives are posted, as other operations."""
    communicator: Callable[[ChannelKey], str] = str

    def rewired(self, orders: Orders) -> Orders:
        """Return orders as processes enqueue them that are wired in this way."""
        return {rank: self._rewired(order) for rank, order in orders.items()}

    def _rewired(self, order: Sequence[StreamOperation]) -> Sequence[StreamOperation]:
        found: list[StreamOperation] = []
        moved: dict[int, int] = {}
        """The new place of each operation."""
        computed: tuple[int, ...] = ()
        """What the stream of the operations does last before a receive is posted late."""

        def put(place: int, **changes: Any) -> None:
            one = order[place]
            changes.setdefault("after", tuple(moved[before] for before in one.after))
            if one.channel is not None:
                changes["communicator"] = self.communicator(one.channel)
            if one.kind == "send" and self.sends_on_compute:
                changes["stream"] = COMPUTE
            moved[place] = len(found)
            found.append(evolve(one, **changes))

        for place, one in enumerate(order):
            if one.kind == "receive" and not self.ahead:
                continue
            for before in one.after:
                if before not in moved:
                    put(before, after=computed)
            put(place)
            if found[-1].stream == COMPUTE:
                computed = (len(found) - 1,)
        return found


USUAL = Wiring()


@frozen(kw_only=True)
class Ran:
    """What came of a run."""

    returned: Mapping[int, Any]
    """By rank, what its process returned."""
    done: Mapping[int, Sequence[str]]
    """By rank, its sends, receives and reads, in their order."""


def run(
    executors: Sequence[StageExecutor],
    ranks: Sequence[int],
    body: Callable[[Scheduler, ToldLater], Any],
    *,
    seed: int = 0,
    wiring: Wiring = USUAL,
    policy: Policy = "static",
    global_clip: bool = False,
    fabric: Fabric | None = None,
) -> Ran:
    """Let every process do `body` with the scheduler of its stages.

    Args:
        executors: of all stages.
        ranks: the process of each stage.
        fabric: of device channels, which then take the place of the strict ones.

    Raises:
        Standstill: the processes wait for one another.
    """
    world, returned = World(seed), dict[int, Any]()
    programs = [executor.program for executor in executors]
    size = max(ranks) + 1
    supervisors: list[ToldLater] = []
    communicators: dict[tuple[str, int, int], Communicator] = {}

    def process_of(rank: int) -> Process:
        def act() -> None:
            own = [executor for executor, host in zip(executors, ranks, strict=True) if host == rank]
            scheduler = Scheduler(
                own,
                channels[rank],
                supervisor=supervisors[rank],
                policy=policy,
                global_clip=global_clip,
                rank=rank,
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
        if fabric is not None:
            late = Late([supervisors[sender], supervisors[receiver]])
            world.add(late)
            peer = DevicePeer(rank=0, group=fabric.group(), device=torch.device("cpu"), lost=_raised)
            announcements = HostChannel(channel.capacity, late)
            channels[sender].senders[key] = DeviceSender(peer, channel, announcements)
            channels[receiver].receivers[key] = DeviceReceiver(peer, channel, announcements)
            continue
        pair = wiring.communicator(key), min(sender, receiver), max(sender, receiver)
        if pair not in communicators:
            communicators[pair] = Communicator(world, [supervisors[sender], supervisors[receiver]])
        communicator, awaited = communicators[pair], wiring.forwards_awaited and key.direction == "forward"
        channels[sender].senders[key] = StrictSender(
            supervisors[sender].process, communicator, channel, waits=wiring.sends_on_compute
        )
        channels[receiver].receivers[key] = StrictReceiver(
            supervisors[receiver].process, communicator, channel, ahead=wiring.ahead, awaited=awaited
        )
    world.run()
    return Ran(returned=returned, done={one.process.rank: one.process.done for one in supervisors})


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
