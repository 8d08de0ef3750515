"""The operations of a pipeline in the order in which the runtimes begin them, and when: what executes, predicts and draws them asks here.

Three stages under `1f1b` where a forward takes 1 second and a backward 2, one column a second:

    stage 1   F0 F1 F2 .  .  .  .  B0 -- F3 B1 -- .  B2 -- .  B3 --
    stage 2   .  F0 F1 .  .  B0 -- F2 B1 -- F3 B2 -- .  B3 -- .  .
    stage 3   .  .  F0 B0 -- F1 B1 -- F2 B2 -- F3 B3 -- .  .  .  .

Every stage follows `program.schedule.order`, and a device does one operation at a time. Of the operations whose messages were sent, the one
that can start first goes next, and of several, that of the stage nearest to the head: so does the scheduler under `arrival`.

Under `static` the stage nearest to the head goes next whose messages were sent and have room, whatever anything takes. Every operation comes
after all that it needs, so a process that performs its own part of this one order waits only for operations that come before.

Messages between two stages of one device cost no time. Others overlap computation, one after another on each directed pair of devices.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from heapq import heappop, heappush
from math import frexp, ldexp
from typing import get_args

import networkx as nx
from attrs import define, evolve, field, frozen
from attrs.validators import ge

from petra_graph.program.channels import ChannelKey, capacity
from petra_graph.program.schedule import Action, Policy, Verb, program_order
from petra_graph.program.stage_program import StageProgram

_UNITS = 40
"""Binary digits of the longest time: times are whole numbers, so that nothing depends on the rounding of sums, and a state that recurs does so exactly."""
_VERBS: Sequence[Verb] = get_args(Verb)


@frozen(kw_only=True)
class StageSeconds:
    """Seconds of one stage's operations on its device, for one micro-batch."""

    forward: float = field(validator=ge(0))
    backward: float = field(validator=ge(0))
    update: float = field(default=0.0, validator=ge(0))
    """One optimizer step, with an all-reduce that no computation hides."""
    exchange: float = field(default=0.0, validator=ge(0))
    """Of `update`: waiting for the all-reduce, which does not count as work."""

    def per_micro_batch(self, accumulation: int) -> float:
        """Return the work of a micro-batch, with its share of an update."""
        return self.forward + self.backward + (self.update - self.exchange) / accumulation


@frozen
class ChannelTiming:
    """Durations of one channel's messages, between the stages of these indices."""

    sender: int
    receiver: int
    link: tuple[str, str] | None = None
    occupies_seconds: float = 0.0
    latency_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """From leaving to arriving, on an idle link."""
        return self.occupies_seconds + self.latency_seconds


@frozen(kw_only=True, eq=False, slots=False)
class Pipeline:
    """All stages, from the source's to the head's, in topological order, and what they take."""

    stages: tuple[StageProgram, ...]
    seconds: tuple[StageSeconds, ...]
    channels: Mapping[ChannelKey, ChannelTiming]
    """All directions of every edge between stages, forward ones first."""
    policy: Policy = "arrival"

    @property
    def accumulation(self) -> int:
        return self.stages[0].accumulation

    @cached_property
    def graph(self) -> nx.DiGraph:
        """The stages by their indices, and the edges between them."""
        graph = nx.DiGraph()
        graph.add_nodes_from(stage.index for stage in self.stages)
        forward = (one for key, one in self.channels.items() if key.direction == "forward")
        graph.add_edges_from((one.sender, one.receiver) for one in forward)
        return graph

    @cached_property
    def hosted(self) -> Mapping[str, Sequence[StageSeconds]]:
        """What the stages of each device take, devices in the order of their first stage."""
        found: dict[str, list[StageSeconds]] = {}
        for stage, seconds in zip(self.stages, self.seconds, strict=True):
            found.setdefault(stage.device, []).append(seconds)
        return found

    def with_depths(self, depths: Sequence[int]) -> "Pipeline":
        """Return the same pipeline with other depths; the room of its channels follows from them."""
        stages = zip(self.stages, depths, strict=True)
        return evolve(self, stages=tuple(evolve(stage, depth=depth) for stage, depth in stages))


@define(eq=False)
class _Stage:
    program: StageProgram
    times: Mapping[Verb, int]
    operations: Iterator[Action]
    following: Action | None
    reads: Mapping[Verb, list["_Channel"]] = field(factory=lambda: {verb: [] for verb in _VERBS})
    """By operation, the channels with the messages that it needs."""
    sends: Mapping[Verb, list["_Channel"]] = field(factory=lambda: {verb: [] for verb in _VERBS})
    waits: bool = True
    """For a message, or for its turn among those whose messages were sent."""


@define(eq=False)
class _Channel:
    sender: _Stage
    receiver: _Stage
    room: int
    link: tuple[str, str] | None
    occupies: int
    takes: int
    arrivals: deque[int] = field(factory=deque)


class Simulation:
    """The operations of all stages, between two drains; iterated, it yields them in the order in which they are begun."""

    def __init__(self, pipeline: Pipeline, micro_batches: range, filled: int = 0) -> None:
        channels = pipeline.channels.values()
        of_stages = (getattr(seconds, verb) for seconds in pipeline.seconds for verb in _VERBS)
        self._digits = digits = _UNITS - frexp(max(*of_stages, *(one.seconds for one in channels), 0.0))[1]

        def units(seconds: float) -> int:
            return round(ldexp(seconds, digits))

        self._in_order = pipeline.policy == "static"
        self._stages: list[_Stage] = []
        for program, seconds in zip(pipeline.stages, pipeline.seconds, strict=True):
            operations = program_order(program, micro_batches, filled)
            times = {verb: units(getattr(seconds, verb)) for verb in _VERBS}
            self._stages.append(_Stage(program, times, operations, next(operations, None)))
        self._free = {stage.device: 0 for stage in pipeline.stages}
        self._link_free = {channel.link: 0 for channel in channels if channel.link is not None}
        self._sent: list[tuple[int, int]] = []
        """A heap: when the next operation of a stage that has its messages can start, and the stage, those near the head first."""
        self._channels: list[_Channel] = []
        for key, timing in pipeline.channels.items():
            sender, receiver = self._stages[timing.sender - 1], self._stages[timing.receiver - 1]
            nearer, deeper = sorted((sender.program.depth, receiver.program.depth))
            times_on_link = units(timing.occupies_seconds), units(timing.seconds)
            channel = _Channel(sender, receiver, capacity(deeper, nearer), timing.link, *times_on_link)
            receiver.reads[key.direction].append(channel)
            sender.sends[key.direction].append(channel)
            self._channels.append(channel)

    def seconds(self, time: float) -> float:
        return ldexp(time, -self._digits)

    def __iter__(self) -> Iterator[tuple[StageProgram, Action, int, int]]:
        free, in_order, enter, sent = self._free, self._in_order, self._enter, self._sent
        for stage in self._stages:
            enter(stage)
        while sent:
            when, number = heappop(sent)
            stage = self._stages[-number - 1]
            action = stage.following
            assert action is not None
            verb, start = action.verb, max(when, free[stage.program.device])
            if start > when and not in_order:  # Its device has begun something else meanwhile.
                heappush(sent, (start, number))
                continue
            for channel in stage.reads[verb]:
                start = max(start, channel.arrivals.popleft())
            end = free[stage.program.device] = start + stage.times[verb]
            stage.following, stage.waits = next(stage.operations, None), True
            yield stage.program, action, start, end
            for channel in stage.sends[verb]:
                enters = end
                if channel.link is not None:
                    enters = max(end, self._link_free[channel.link])
                    self._link_free[channel.link] = enters + channel.occupies
                channel.arrivals.append(enters + channel.takes)
                enter(channel.receiver)
            for channel in stage.reads[verb] if in_order else ():
                enter(channel.sender)
            enter(stage)
        assert not any(stage.following for stage in self._stages), "every stage waits: depths grow along an edge"

    def _enter(self, stage: _Stage) -> None:
        """Let a stage take its turn, unless a message was not sent or, in the static order, has no room."""
        if not stage.waits or stage.following is None:
            return
        verb, start = stage.following.verb, self._free[stage.program.device]
        for channel in stage.reads[verb]:
            if not channel.arrivals:
                return
            start = max(start, channel.arrivals[0])
        if self._in_order:
            start = 0
            for channel in stage.sends[verb]:
                if len(channel.arrivals) >= channel.room:
                    return
        stage.waits = False
        heappush(self._sent, (start, -stage.program.index))

    def state(self, micro_batch: int, now: int) -> Hashable:
        """Return all that decides what follows an operation on a micro-batch, with times and micro-batches after its own."""
        # Of what is over, an operation that is begun at `now` or later does not depend on when it was.
        after: Callable[[int], int] = (lambda time: time - now) if self._in_order else (lambda time: max(0, time - now))
        following = [stage.following for stage in self._stages]
        return (
            tuple(None if one is None else (one.verb, one.micro_batch - micro_batch) for one in following),
            tuple(map(after, self._free.values())),
            tuple(map(after, self._link_free.values())),
            tuple(tuple(map(after, channel.arrivals)) for channel in self._channels),
        )


def static_order(
    programs: Sequence[StageProgram], micro_batches: range, filled: int = 0
) -> Iterator[tuple[int, Action]]:
    """Yield the operations of all stages in the order of `static`, each with its stage's index; what they take does not count."""
    nothing = (StageSeconds(forward=0.0, backward=0.0),) * len(programs)
    channels = {
        channel.key: ChannelTiming(sender=channel.sender, receiver=channel.receiver)
        for program in programs
        for channel in program.channels
    }
    pipeline = Pipeline(stages=tuple(programs), seconds=nothing, channels=channels, policy="static")
    for stage, action, _, _ in Simulation(pipeline, micro_batches, filled):
        yield stage.index, action
