"""A discrete-event simulation of the orders that the runtimes execute.

Every stage follows `program.schedule.order`. A device that does one operation at a time follows it as written. On a
device that overlaps, forwards form one stream, backwards and updates another, and the order still holds where numbers
depend on it: a forward starts after the backwards and updates that stand before it, a backward after its own forward, an
update after the forwards that stand before it.

Decision: where a device hosts several stages, the ready stage nearest to the head goes first. So the pipeline empties
from its end, as the scheduler's does, which goes over its stages in reverse order.

All events of one time are handled before the next operation is chosen, so the result does not depend on the order of
simultaneous events.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from attrs import define, field

from petra_graph.compiler.simulator.outcome import Deadlock, Event, Timeline, Wait, waiting_cycle
from petra_graph.compiler.simulator.pipeline import ChannelTiming, Pipeline, TimedStage
from petra_graph.program.channels import ChannelKey
from petra_graph.program.schedule import Action, Verb


def simulate(pipeline: Pipeline, micro_batches: int) -> Timeline:
    """Run `micro_batches` from start to drain.

    Raises:
        Deadlock: some stage would wait for ever.
    """
    return _Simulation(pipeline, micro_batches).run()


class _Operation(NamedTuple):
    action: Action
    after: int
    """Operations of the stage's other stream that must have ended before this one starts."""


@define(eq=False)
class _ChannelState:
    """A channel during the simulation; messages are counted, since they come and go in order."""

    key: ChannelKey
    timing: ChannelTiming
    arrived: int = 0
    freed: int = 0
    """Messages whose reader has ended."""


@define(eq=False)
class _StageState:
    stage: TimedStage
    streams: tuple[deque[_Operation], ...]
    """Operations still to be started: forwards and the rest apart, or all in one."""
    ended: list[int]
    """For each stream, the operations that have ended."""
    receives: defaultdict[Verb, list[_ChannelState]] = field(factory=lambda: defaultdict(list))
    """By the operation that reads them."""
    sends: defaultdict[Verb, list[_ChannelState]] = field(factory=lambda: defaultdict(list))
    """By the operation that sends on them."""


@define(eq=False)
class _Unit:
    """A device, or one stream of a device that overlaps: it does one operation at a time."""

    stream: int
    stages: list[_StageState] = field(factory=list)
    """Nearest to the head first."""
    busy: bool = False


class _Simulation:
    """All stages, units and channels, and the events still to come."""

    def __init__(self, pipeline: Pipeline, micro_batches: int) -> None:
        self._pipeline = pipeline
        self._stages: dict[int, _StageState] = {}
        for stage in pipeline.stages:
            streams = tuple(map(deque, _streams(stage.actions(micro_batches), overlap=pipeline.overlap)))
            self._stages[stage.index] = _StageState(stage, streams, ended=[0] * len(streams))
        for key, timing in pipeline.channels.items():
            channel = _ChannelState(key, timing)
            self._stages[timing.receiver].receives[key.direction].append(channel)
            self._stages[timing.sender].sends[key.direction].append(channel)
        self._units: dict[tuple[str, int], _Unit] = {}
        for state in reversed(self._stages.values()):
            for stream in range(len(state.streams)):
                self._units.setdefault((state.stage.device, stream), _Unit(stream)).stages.append(state)
        self._link_free: dict[tuple[str, str], float] = {}
        self._heap: list[tuple[float, int, _ChannelState | tuple[_Unit, _StageState, _Operation]]] = []
        self._ticket = count()
        self._ready: dict[int, _Unit] = {}
        """Units for which something has changed, by their identity."""
        self._events: list[Event] = []

    def run(self) -> Timeline:
        """Simulate until no event is left."""
        for unit in self._units.values():
            self._start_next(unit, 0.0)
        while self._heap:
            now = self._heap[0][0]
            self._handle_events(now)
            ready, self._ready = self._ready, {}
            for unit in ready.values():
                self._start_next(unit, now)
        if any(stream for state in self._stages.values() for stream in state.streams):
            raise Deadlock(waiting_cycle(list(self._waits())))
        return Timeline(head=self._pipeline.head.index, events=tuple(self._events))

    def _handle_events(self, now: float) -> None:
        """Handle all arrivals and ends at one time."""
        while self._heap and self._heap[0][0] == now:
            _, _, event = heappop(self._heap)
            if isinstance(event, _ChannelState):
                event.arrived += 1
                self._wake(self._stages[event.timing.receiver])
            else:
                self._end(*event, now)

    def _wake(self, state: _StageState) -> None:
        for stream in range(len(state.streams)):
            unit = self._units[state.stage.device, stream]
            self._ready[id(unit)] = unit

    def _start_next(self, unit: _Unit, now: float) -> None:
        if unit.busy:
            return
        for state in unit.stages:
            stream = state.streams[unit.stream]
            if stream and _obstacle(state, unit.stream, stream[0]) is None:
                operation = stream.popleft()
                unit.busy = True
                stage, action = state.stage, operation.action
                end = now + stage.seconds.of(action.verb)
                self._events.append(Event(stage.index, stage.device, action.verb, action.micro_batch, now, end))
                self._push(end, (unit, state, operation))
                return

    def _end(self, unit: _Unit, state: _StageState, operation: _Operation, now: float) -> None:
        state.ended[unit.stream] += 1
        unit.busy = False
        self._wake(state)
        for channel in state.receives[operation.action.verb]:
            channel.freed += 1
            if channel.timing.capacity is not None:
                self._wake(self._stages[channel.timing.sender])
        for channel in state.sends[operation.action.verb]:
            self._send(channel, now)

    def _send(self, channel: _ChannelState, now: float) -> None:
        """Put a message on its way."""
        timing = channel.timing
        if timing.link is None:
            self._push(now, channel)
            return
        start = max(now, self._link_free.get(timing.link, 0.0))
        self._link_free[timing.link] = start + timing.occupies_seconds
        self._push(start + timing.seconds, channel)

    def _push(self, time: float, event: _ChannelState | tuple[_Unit, _StageState, _Operation]) -> None:
        heappush(self._heap, (time, next(self._ticket), event))

    def _waits(self) -> Iterator[Wait]:
        """Yield the wait of each stage, those first that are not for the stage's own other stream."""
        waits = [
            _wait(state, operations[0].action, obstacle)
            for state in self._stages.values()
            for stream, operations in enumerate(state.streams)
            if operations and (obstacle := _obstacle(state, stream, operations[0]))
        ]
        yield from sorted(waits, key=lambda wait: wait.channel is None)


def _obstacle(state: _StageState, stream: int, operation: _Operation) -> _StageState | _ChannelState | None:
    """Return the first thing that an operation still waits for, None if nothing: its stage, or a channel that is empty or full."""
    verb, micro_batch = operation.action
    if operation.after and state.ended[1 - stream] < operation.after:
        return state
    for channel in state.receives[verb]:
        if channel.arrived <= micro_batch:
            return channel
    for channel in state.sends[verb]:
        capacity = channel.timing.capacity
        if capacity is not None and micro_batch - channel.freed >= capacity:
            return channel
    return None


def _wait(state: _StageState, action: Action, obstacle: _StageState | _ChannelState) -> Wait:
    at = state.stage.index
    if isinstance(obstacle, _StageState):
        return Wait(stage=at, action=action, on=at, channel=None)
    timing = obstacle.timing
    if obstacle in state.receives[action.verb]:
        return Wait(stage=at, action=action, on=timing.sender, channel=obstacle.key)
    return Wait(stage=at, action=action, on=timing.receiver, channel=obstacle.key, capacity=timing.capacity)


def _streams(actions: Iterator[Action], *, overlap: bool) -> Sequence[Sequence[_Operation]]:
    """Split an order into streams, with the operations of the other stream that each operation comes after."""
    if not overlap:
        return ([_Operation(action, 0) for action in actions],)
    forwards: list[_Operation] = []
    others: list[_Operation] = []
    for action in actions:
        match action.verb:
            case "forward":
                forwards.append(_Operation(action, len(others)))
            case "backward":
                others.append(_Operation(action, action.micro_batch + 1))
            case "update":
                others.append(_Operation(action, len(forwards)))
    return forwards, others
