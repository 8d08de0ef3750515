"""A discrete-event simulation of the orders that the runtimes execute.

Every stage follows `program.schedule.order`. On a device that does one operation at a time it is followed as written;
on one that overlaps, forwards form one stream, backwards and updates another, and what the order says stays true where
it matters for the numbers: a forward starts after the backwards and updates that stand before it, a backward after its
own forward, an update after the forwards that stand before it.

Decision: where a device hosts several stages, whatever is ready nearest to the head goes first. So the pipeline empties
from its end, as the inline runtime's does, which goes over its stages in reverse order.

All that happens at one time is taken in before the next operation is chosen, so that the result is one, whatever the
order in which simultaneous events are looked at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from attrs import define, field

from petra_graph.compiler.simulator.deadlock import Deadlock, Wait, circle
from petra_graph.compiler.simulator.model import ChannelTiming, Pipeline, StageSeconds, TimedStage
from petra_graph.compiler.simulator.timeline import Event, Timeline, Transfer
from petra_graph.program.channels import ChannelKey
from petra_graph.program.schedule import Action, Verb, order


def simulate(pipeline: Pipeline, micro_batches: int) -> Timeline:
    """Run `micro_batches` from start to drain.

    Raises:
        Deadlock: some stage would wait for ever.
    """
    return _Simulation(pipeline, micro_batches).run()


class _Operation(NamedTuple):
    verb: Verb
    micro_batch: int
    after: int
    """Operations of the stage's other stream that must have ended before it starts."""


@define(eq=False)
class _Lane:
    """A channel while time goes on; messages are counted, since they come and go in order."""

    channel: ChannelKey
    hop: ChannelTiming
    arrived: int = 0
    freed: int = 0
    """Messages whose reader has ended."""


@define(eq=False)
class _Stage:
    stage: TimedStage
    seconds: StageSeconds
    streams: tuple[deque[_Operation], ...]
    """What is still to be started: forwards and the rest apart, or all in one."""
    ended: list[int]
    """For each stream, how many have ended."""
    receives: dict[Verb, list[_Lane]]
    sends: dict[Verb, list[_Lane]]


@define(eq=False)
class _Unit:
    """What does one operation at a time: a device, or one stream of a device that overlaps."""

    device: str
    stream: int
    stages: list[_Stage] = field(factory=list)
    """Nearest to the head first."""
    busy: bool = False


class _Simulation:
    def __init__(self, pipeline: Pipeline, micro_batches: int) -> None:
        self._pipeline = pipeline
        self._micro_batches = micro_batches
        self._channels = {channel: _Lane(channel, hop) for channel, hop in pipeline.channels.items()}
        self._receives = _by_stage((channel.hop.receiver, channel) for channel in self._channels.values())
        self._sends = _by_stage((channel.hop.sender, channel) for channel in self._channels.values())
        self._stages = {stage.index: self._state(stage) for stage in pipeline.stages}
        self._units: dict[tuple[str, int], _Unit] = {}
        for state in reversed(self._stages.values()):
            for stream in range(len(state.streams)):
                key = state.stage.device, stream
                self._units.setdefault(key, _Unit(*key)).stages.append(state)
        self._link_free: dict[tuple[str, str], float] = {}
        self._heap: list[tuple[float, int, _Lane | tuple[_Unit, _Stage, _Operation, bool]]] = []
        self._ticket = count()
        self._touched: dict[int, _Unit] = {}
        self._events: list[Event] = []
        self._transfers: list[Transfer] = []

    def run(self) -> Timeline:
        for unit in self._units.values():
            self._start_next(unit, 0.0)
        while self._heap:
            now = self._heap[0][0]
            self._take_in(now)
            touched, self._touched = self._touched, {}
            for unit in touched.values():
                self._start_next(unit, now)
        if any(stream for state in self._stages.values() for stream in state.streams):
            raise Deadlock(circle(list(self._waits())))
        return Timeline(
            micro_batches=self._micro_batches,
            head=self._pipeline.head.index,
            events=tuple(self._events),
            transfers=tuple(sorted(self._transfers, key=lambda transfer: transfer.start)),
        )

    def _state(self, stage: TimedStage) -> _Stage:
        actions = order(stage.depth, range(self._micro_batches), stage.accumulation, stage.flush)
        streams = tuple(map(deque, _streams(actions, overlaps=self._pipeline.overlaps(stage))))
        return _Stage(
            stage=stage,
            seconds=self._pipeline.seconds(stage),
            streams=streams,
            ended=[0] * len(streams),
            receives=self._receives.get(stage.index, {}),
            sends=self._sends.get(stage.index, {}),
        )

    def _take_in(self, now: float) -> None:
        """Let all that happens now happen, but for what starts."""
        while self._heap and self._heap[0][0] == now:
            _, _, what = heappop(self._heap)
            if isinstance(what, _Lane):
                what.arrived += 1
                self._touch(self._stages[what.hop.receiver])
                continue
            unit, state, operation, releases = what
            if releases:
                unit.busy = False
                self._touched[id(unit)] = unit
            else:
                self._end(unit, state, operation, now)

    def _touch(self, state: _Stage) -> None:
        for stream in range(len(state.streams)):
            unit = self._units[state.stage.device, stream]
            self._touched[id(unit)] = unit

    def _start_next(self, unit: _Unit, now: float) -> None:
        if unit.busy:
            return
        for state in unit.stages:
            stream = state.streams[unit.stream] if unit.stream < len(state.streams) else None
            if stream and self._missing(state, unit.stream, stream[0]) is None:
                operation = stream.popleft()
                unit.busy = True
                end = now + getattr(state.seconds, operation.verb)
                stage = state.stage
                self._events.append(Event(stage.index, stage.device, operation.verb, operation.micro_batch, now, end))
                self._push(end, (unit, state, operation, False))
                return

    def _end(self, unit: _Unit, state: _Stage, operation: _Operation, now: float) -> None:
        state.ended[unit.stream] += 1
        self._touch(state)
        for each in state.receives.get(operation.verb, ()):
            each.freed += 1
            if each.hop.slots is not None:
                self._touch(self._stages[each.hop.sender])
        arrivals = [self._send(each, operation, now) for each in state.sends.get(operation.verb, ())]
        if self._pipeline.blocking_sends and arrivals and max(arrivals) > now:
            self._push(max(arrivals), (unit, state, operation, True))
        else:
            unit.busy = False

    def _send(self, channel: _Lane, operation: _Operation, now: float) -> float:
        """Put a message on its way; return when it arrives."""
        hop = channel.hop
        if hop.link is None:
            self._push(now, channel)
            return now
        start = max(now, self._link_free.get(hop.link, 0.0))
        self._link_free[hop.link] = start + hop.occupies_seconds
        arrival = start + hop.seconds
        self._transfers.append(Transfer(channel.channel, *hop.link, operation.micro_batch, start, arrival))
        self._push(arrival, channel)
        return arrival

    def _push(self, time: float, what: _Lane | tuple[_Unit, _Stage, _Operation, bool]) -> None:
        heappush(self._heap, (time, next(self._ticket), what))

    def _missing(self, state: _Stage, stream: int, operation: _Operation) -> Wait | None:
        """Return what the operation still waits for, None if nothing."""
        at, m = state.stage.index, operation.micro_batch
        if operation.after and state.ended[1 - stream] < operation.after:
            return Wait(stage=at, action=_action(operation), on=at, channel=None)
        for each in state.receives.get(operation.verb, ()):
            if each.arrived <= m:
                return Wait(stage=at, action=_action(operation), on=each.hop.sender, channel=each.channel)
        for each in state.sends.get(operation.verb, ()):
            slots = each.hop.slots
            if slots is not None and m - each.freed >= slots:
                return Wait(
                    stage=at, action=_action(operation), on=each.hop.receiver, channel=each.channel, slots=slots
                )
        return None

    def _waits(self) -> Iterator[Wait]:
        """Yield what keeps each stage, those waits first that are not for the stage's own other stream."""
        waits = [
            wait
            for state in self._stages.values()
            for stream, operations in enumerate(state.streams)
            if operations and (wait := self._missing(state, stream, operations[0]))
        ]
        yield from sorted(waits, key=lambda wait: wait.channel is None)


def _action(operation: _Operation) -> Action:
    return Action(operation.verb, operation.micro_batch)


def _by_stage(channels: Iterable[tuple[int, _Lane]]) -> dict[int, dict[Verb, list[_Lane]]]:
    """Sort channels by stage, and by the operation that sends or reads them there."""
    found: dict[int, dict[Verb, list[_Lane]]] = {}
    for stage, channel in channels:
        found.setdefault(stage, {}).setdefault(channel.channel.direction, []).append(channel)
    return found


def _streams(actions: Iterator[Action], *, overlaps: bool) -> Sequence[Sequence[_Operation]]:
    """Split an order into streams; say what each operation awaits of the other stream."""
    if not overlaps:
        return ([_Operation(action.verb, action.micro_batch, 0) for action in actions],)
    forwards: list[_Operation] = []
    others: list[_Operation] = []
    for action in actions:
        match action.verb:
            case "forward":
                forwards.append(_Operation(action.verb, action.micro_batch, len(others)))
            case "backward":
                others.append(_Operation(action.verb, action.micro_batch, action.micro_batch + 1))
            case "update":
                others.append(_Operation(action.verb, action.micro_batch, len(forwards)))
    return forwards, others
