"""A discrete-event simulation of the orders that the runtimes execute.

Every stage follows `program.schedule.order`. A device that does one operation at a time follows it as written. On a
device that overlaps, forwards form one stream, backwards and updates another, and the order still holds where numbers
depend on it: a forward starts after the backwards and updates that stand before it, a backward after its own forward, an
update after the forwards that stand before it.

Decision: where a device hosts several stages, the ready stage nearest to the head goes first. So the pipeline empties
from its end, as the scheduler's does, which goes over its stages in reverse order.

Times are whole numbers of a tiny unit, a power of two of a second, and all events of one time are handled before the next
operation is chosen. So nothing depends on the rounding of sums or on the order of simultaneous events, and a state that
recurs does so exactly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from math import frexp, ldexp
from typing import NamedTuple

from attrs import define, field

from petra_graph.compiler.simulator.outcome import Deadlock, Event, Timeline, Wait, waiting_cycle
from petra_graph.compiler.simulator.pipeline import ChannelTiming, Pipeline, TimedStage
from petra_graph.program.channels import ChannelKey
from petra_graph.program.schedule import Action, Verb

_UNITS = 40
"""Binary digits of the longest time."""


def simulate(pipeline: Pipeline, micro_batches: int) -> Timeline:
    """Run `micro_batches` from start to drain.

    Raises:
        Deadlock: some stage would wait for ever.
    """
    simulation = Simulation(pipeline, micro_batches)
    events = tuple(simulation.event(each) for started in simulation.steps() for each in started)
    return Timeline(head=pipeline.head.index, events=events)


class _Operation(NamedTuple):
    action: Action
    after: int
    """Operations of the stage's other stream that must have ended before this one starts."""


class Started(NamedTuple):
    """An operation and when it starts and ends."""

    stage: TimedStage
    action: Action
    start: int
    end: int


@define(eq=False)
class _Channel:
    """A channel during the simulation; messages are counted, since they come and go in order."""

    number: int
    key: ChannelKey
    timing: ChannelTiming
    sender: _Stage
    receiver: _Stage
    occupies: int
    """Time in which no other message enters the link."""
    takes: int
    """Time from leaving to arriving, on an idle link."""
    arrived: int = 0
    freed: int = 0
    """Messages whose reader has ended."""


@define(eq=False)
class _Stage:
    stage: TimedStage
    times: dict[Verb, int]
    streams: list[_Stream] = field(factory=list)
    """Forwards and the rest apart on a device that overlaps, or all operations in one."""
    units: list[_Unit] = field(factory=list)
    """Of the streams."""
    receives: defaultdict[Verb, list[_Channel]] = field(factory=lambda: defaultdict(list))
    """By the operation that reads them."""
    sends: defaultdict[Verb, list[_Channel]] = field(factory=lambda: defaultdict(list))
    """By the operation that sends on them."""


@define(eq=False)
class _Stream:
    """Operations of a stage in their order."""

    number: int
    stage: _Stage
    unit: _Unit
    operations: Iterator[_Operation]
    following: _Operation | None
    """The next one to start; None after the last."""
    ended: int = 0


@define(eq=False)
class _Unit:
    """A device, or one stream of a device that overlaps: it does one operation at a time."""

    streams: list[_Stream] = field(factory=list)
    """Of the stages nearest to the head first."""
    running: Verb | None = None


class Simulation:
    """All stages, units and channels, and the events still to come."""

    def __init__(self, pipeline: Pipeline, micro_batches: int) -> None:
        self._accumulation = pipeline.accumulation
        longest = max(
            *(stage.seconds.of(verb) for stage in pipeline.stages for verb in ("forward", "backward", "update")),
            *(channel.seconds for channel in pipeline.channels.values()),
            0.0,
        )
        self._digits = _UNITS - frexp(longest)[1]
        self.now = 0
        self._stages = {
            stage.index: _Stage(
                stage, {verb: self._time(stage.seconds.of(verb)) for verb in ("forward", "backward", "update")}
            )
            for stage in pipeline.stages
        }
        self._channels: list[_Channel] = []
        for number, (key, timing) in enumerate(pipeline.channels.items()):
            ends = self._stages[timing.sender], self._stages[timing.receiver]
            times = self._time(timing.occupies_seconds), self._time(timing.seconds)
            channel = _Channel(number, key, timing, *ends, *times)
            for each in (channel.receiver.receives[key.direction], channel.sender.sends[key.direction], self._channels):
                each.append(channel)
        units: defaultdict[tuple[str, int], _Unit] = defaultdict(_Unit)
        self._streams: list[_Stream] = []
        for stage in reversed(self._stages.values()):
            for number in range(2 if pipeline.overlap else 1):
                unit = units[stage.stage.device, number]
                operations = _operations(stage.stage.actions(micro_batches), number if pipeline.overlap else None)
                stream = _Stream(len(self._streams), stage, unit, operations, next(operations, None))
                stage.units.append(unit)
                for streams in (self._streams, stage.streams, unit.streams):
                    streams.append(stream)
        self._ready = dict.fromkeys(units.values())
        """Units for which something has changed."""
        self._link_free: dict[tuple[str, str], int] = {}
        self._ends: list[tuple[int, int]] = []
        """A heap of operations that run: when they end, and the number of their stream."""
        self._arrivals: list[tuple[int, int]] = []
        """A heap of messages under way: when they arrive, and the number of their channel."""

    def _time(self, seconds: float) -> int:
        return round(ldexp(seconds, self._digits))

    def seconds(self, time: float) -> float:
        return ldexp(time, -self._digits)

    def event(self, started: Started) -> Event:
        stage, action, start, end = started
        return Event(stage.index, stage.device, action.verb, action.micro_batch, self.seconds(start), self.seconds(end))

    def steps(self) -> Iterator[Sequence[Started]]:
        """Yield the operations that start at each time at which any does, until the last one has ended.

        Raises:
            Deadlock: some stage would wait for ever.
        """
        while True:
            ready, self._ready = self._ready, {}
            if started := [each for unit in ready if (each := self._start_next(unit)) is not None]:
                yield started
            if not self._ends and not self._arrivals:
                break
            self.now = min(heap[0][0] for heap in (self._ends, self._arrivals) if heap)
            self._handle_events()
        if any(stream.following is not None for stream in self._streams):
            raise Deadlock(waiting_cycle(list(self._waits())))

    def state(self, micro_batch: int) -> Hashable:
        """Return all that decides what follows, with times after now and micro-batches after `micro_batch`.

        Operations that have ended follow from those that run and those that come next.
        """
        return (
            micro_batch % self._accumulation,
            tuple(
                (stream.following.action.verb, stream.following.action.micro_batch - micro_batch)
                if stream.following is not None
                else None
                for stream in self._streams
            ),
            tuple((channel.arrived - micro_batch, channel.freed - micro_batch) for channel in self._channels),
            tuple((end - self.now, stream, self._streams[stream].unit.running) for end, stream in sorted(self._ends)),
            tuple((arrival - self.now, channel) for arrival, channel in sorted(self._arrivals)),
            tuple(max(0, free - self.now) for free in self._link_free.values()),
        )

    def _handle_events(self) -> None:
        """Handle all ends and arrivals of this time."""
        now = self.now
        while self._ends and self._ends[0][0] == now:
            self._end(self._streams[heappop(self._ends)[1]])
        while self._arrivals and self._arrivals[0][0] == now:
            channel = self._channels[heappop(self._arrivals)[1]]
            channel.arrived += 1
            self._wake(channel.receiver)

    def _wake(self, stage: _Stage) -> None:
        for unit in stage.units:
            self._ready[unit] = None

    def _start_next(self, unit: _Unit) -> Started | None:
        """Start an operation on a unit that is free, if one can start."""
        if unit.running is not None:
            return None
        for stream in unit.streams:
            operation = stream.following
            if operation is not None and _obstacle(stream, operation) is None:
                stream.following = next(stream.operations, None)
                unit.running = operation.action.verb
                end = self.now + stream.stage.times[unit.running]
                heappush(self._ends, (end, stream.number))
                return Started(stream.stage.stage, operation.action, self.now, end)
        return None

    def _end(self, stream: _Stream) -> None:
        verb, stream.unit.running = stream.unit.running, None
        assert verb is not None
        stream.ended += 1
        stage = stream.stage
        self._wake(stage)
        for channel in stage.receives[verb]:
            channel.freed += 1
            if channel.timing.capacity is not None:
                self._wake(channel.sender)
        for channel in stage.sends[verb]:
            arrival, link = self.now, channel.timing.link
            if link is not None:
                start = max(arrival, self._link_free.get(link, 0))
                self._link_free[link] = start + channel.occupies
                arrival = start + channel.takes
            heappush(self._arrivals, (arrival, channel.number))

    def _waits(self) -> Iterator[Wait]:
        """Yield the wait of each stage, those first that are not for the stage's own other stream."""
        waits = [
            _wait(stream, operation.action, obstacle)
            for stream in sorted(self._streams, key=lambda stream: stream.stage.stage.index)
            if (operation := stream.following) is not None and (obstacle := _obstacle(stream, operation)) is not None
        ]
        yield from sorted(waits, key=lambda wait: wait.channel is None)


def _obstacle(stream: _Stream, operation: _Operation) -> _Stream | _Channel | None:
    """Return the first thing that an operation still waits for, None if nothing: the stage's other stream, or a channel that is empty or full."""
    (verb, micro_batch), after = operation
    stage = stream.stage
    if after:
        other = next(each for each in stage.streams if each is not stream)
        if other.ended < after:
            return other
    for channel in stage.receives[verb]:
        if channel.arrived <= micro_batch:
            return channel
    for channel in stage.sends[verb]:
        capacity = channel.timing.capacity
        if capacity is not None and micro_batch - channel.freed >= capacity:
            return channel
    return None


def _wait(stream: _Stream, action: Action, obstacle: _Stream | _Channel) -> Wait:
    at = stream.stage.stage.index
    if isinstance(obstacle, _Stream):
        return Wait(stage=at, action=action, on=at, channel=None)
    timing = obstacle.timing
    if obstacle in stream.stage.receives[action.verb]:
        return Wait(stage=at, action=action, on=timing.sender, channel=obstacle.key)
    return Wait(stage=at, action=action, on=timing.receiver, channel=obstacle.key, capacity=timing.capacity)


def _operations(actions: Iterable[Action], stream: int | None) -> Iterator[_Operation]:
    """Yield the operations of an order: all, or forwards (stream 0) or the others (1), each after operations of the other stream."""
    forwards = others = 0
    for action in actions:
        if stream is None:
            yield _Operation(action, 0)
        elif action.verb == "forward":
            forwards += 1
            if stream == 0:
                yield _Operation(action, others)
        else:
            others += 1
            if stream == 1:
                yield _Operation(action, action.micro_batch + 1 if action.verb == "backward" else forwards)
