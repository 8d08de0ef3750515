"""A discrete-event simulation of the orders that the runtimes execute.

Three stages under `1f1b` where a forward takes 1 second and a backward 2, one column a second:

    stage 1   F0 F1 F2 .  .  .  .  B0 -- F3 B1 -- .  B2 -- .  B3 --
    stage 2   .  F0 F1 .  .  B0 -- F2 B1 -- F3 B2 -- .  B3 -- .  .
    stage 3   .  .  F0 B0 -- F1 B1 -- F2 B2 -- F3 B3 -- .  .  .  .

Every stage follows `program.schedule.order`, and a device does one operation at a time.

Decision: where a device hosts several stages, the ready stage nearest to the head goes first. So the pipeline empties
from its end, as the scheduler's does, which goes over its stages in reverse order.

Times are whole numbers of a tiny unit, a power of two of a second, and all events of one time are handled before the next
operation is chosen. So nothing depends on the rounding of sums or on the order of simultaneous events, and a state that
recurs does so exactly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from heapq import heappop, heappush
from math import frexp, ldexp
from typing import NamedTuple

from attrs import define, field, frozen

from petra_graph.compiler.simulator.pipeline import Pipeline, TimedStage
from petra_graph.program.schedule import Action, Verb

_UNITS = 40
"""Binary digits of the longest time."""
_VERBS: Sequence[Verb] = ("forward", "backward", "update")


class Event(NamedTuple):
    """One operation of a stage; times in seconds."""

    stage: int
    device: str
    verb: Verb
    micro_batch: int
    start: float
    end: float

    @property
    def action(self) -> Action:
        return Action(self.verb, self.micro_batch)


@frozen(kw_only=True)
class Timeline:
    """A simulated run from its start to its drain."""

    head: int
    """Index of the stage with the loss."""
    events: tuple[Event, ...]
    """In the order of their starts."""

    @property
    def seconds(self) -> float:
        """From the start until the last operation has ended."""
        return max((event.end for event in self.events), default=0.0)

    def of(self, stage: int, verb: Verb) -> Iterator[Event]:
        return (event for event in self.events if event.stage == stage and event.verb == verb)

    @property
    def fill_seconds(self) -> float:
        """Until the head starts its first forward."""
        return next((event.start for event in self.of(self.head, "forward")), 0.0)

    @property
    def drain_seconds(self) -> float:
        """From the end of the head's last backward to the end of everything."""
        return self.seconds - max((event.end for event in self.of(self.head, "backward")), default=0.0)


def simulate(pipeline: Pipeline, micro_batches: int) -> Timeline:
    """Run `micro_batches` from start to drain."""
    simulation = Simulation(pipeline, micro_batches)
    events = tuple(simulation.event(each) for started in simulation.steps() for each in started)
    return Timeline(head=pipeline.head.index, events=events)


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
    link: tuple[str, str] | None
    receiver: _Stage
    occupies: int
    """Time in which no other message enters the link."""
    takes: int
    """Time from leaving to arriving, on an idle link."""
    arrived: int = 0


@define(eq=False)
class _Stage:
    """A stage and its operations in their order."""

    number: int
    stage: TimedStage
    device: _Device
    times: dict[Verb, int]
    operations: Iterator[Action]
    following: Action | None
    """The next one to start; None after the last."""
    receives: defaultdict[Verb, list[_Channel]] = field(factory=lambda: defaultdict(list))
    """By the operation that reads them."""
    sends: defaultdict[Verb, list[_Channel]] = field(factory=lambda: defaultdict(list))
    """By the operation that sends on them."""


@define(eq=False)
class _Device:
    """A device does one operation at a time."""

    stages: list[_Stage] = field(factory=list)
    """Those nearest to the head first."""
    running: Verb | None = None


class Simulation:
    """All stages, devices and channels, and the events still to come."""

    def __init__(self, pipeline: Pipeline, micro_batches: int) -> None:
        self._accumulation = pipeline.accumulation
        longest = max(
            *(stage.seconds.of(verb) for stage in pipeline.stages for verb in _VERBS),
            *(channel.seconds for channel in pipeline.channels.values()),
            0.0,
        )
        self._digits = _UNITS - frexp(longest)[1]
        self.now = 0
        devices: defaultdict[str, _Device] = defaultdict(_Device)
        self._stages: list[_Stage] = []
        """From the head on."""
        for timed in reversed(pipeline.stages):
            device, operations = devices[timed.device], timed.actions(micro_batches)
            times = {verb: self._time(timed.seconds.of(verb)) for verb in _VERBS}
            stage = _Stage(len(self._stages), timed, device, times, operations, next(operations, None))
            self._stages.append(stage)
            device.stages.append(stage)
        of_index = {stage.stage.index: stage for stage in self._stages}
        self._channels: list[_Channel] = []
        for number, (key, timing) in enumerate(pipeline.channels.items()):
            times_on_link = self._time(timing.occupies_seconds), self._time(timing.seconds)
            channel = _Channel(number, timing.link, of_index[timing.receiver], *times_on_link)
            channel.receiver.receives[key.direction].append(channel)
            of_index[timing.sender].sends[key.direction].append(channel)
            self._channels.append(channel)
        self._ready = dict.fromkeys(devices.values())
        """Devices for which something has changed."""
        self._link_free: dict[tuple[str, str], int] = {}
        self._ends: list[tuple[int, int]] = []
        """A heap of operations that run: when they end, and the number of their stage."""
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
        """Yield the operations that start at each time at which any does, until the last one has ended."""
        while True:
            ready, self._ready = self._ready, {}
            if started := [each for device in ready if (each := self._start_next(device)) is not None]:
                yield started
            if not self._ends and not self._arrivals:
                break
            self.now = min(heap[0][0] for heap in (self._ends, self._arrivals) if heap)
            while self._ends and self._ends[0][0] == self.now:
                self._end(self._stages[heappop(self._ends)[1]])
            while self._arrivals and self._arrivals[0][0] == self.now:
                channel = self._channels[heappop(self._arrivals)[1]]
                channel.arrived += 1
                self._ready[channel.receiver.device] = None
        assert not any(stage.following for stage in self._stages), "every stage waits: depths grow along an edge"

    def state(self, micro_batch: int) -> Hashable:
        """Return all that decides what follows, with times after now and micro-batches after `micro_batch`.

        Operations that have ended follow from those that run and those that come next.
        """
        return (
            micro_batch % self._accumulation,
            tuple(
                (stage.following.verb, stage.following.micro_batch - micro_batch) if stage.following else None
                for stage in self._stages
            ),
            tuple(channel.arrived - micro_batch for channel in self._channels),
            tuple((end - self.now, stage, self._stages[stage].device.running) for end, stage in sorted(self._ends)),
            tuple((arrival - self.now, channel) for arrival, channel in sorted(self._arrivals)),
            tuple(max(0, free - self.now) for free in self._link_free.values()),
        )

    def _start_next(self, device: _Device) -> Started | None:
        """Start an operation on a device that is free, if the messages of one have arrived."""
        for stage in device.stages if device.running is None else ():
            action = stage.following
            if action and all(one.arrived > action.micro_batch for one in stage.receives[action.verb]):
                stage.following = next(stage.operations, None)
                device.running = action.verb
                end = self.now + stage.times[action.verb]
                heappush(self._ends, (end, stage.number))
                return Started(stage.stage, action, self.now, end)
        return None

    def _end(self, stage: _Stage) -> None:
        verb, stage.device.running = stage.device.running, None
        assert verb is not None
        self._ready[stage.device] = None
        for channel in stage.sends[verb]:
            arrival, link = self.now, channel.link
            if link is not None:
                start = max(arrival, self._link_free.get(link, 0))
                self._link_free[link] = start + channel.occupies
                arrival = start + channel.takes
            heappush(self._arrivals, (arrival, channel.number))
