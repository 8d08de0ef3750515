"""Who waits for whom once the pipeline is full, as a graph that repeats itself.

A node is the start of an operation or of a transfer, for micro-batch r, r + P, r + 2P, ... An edge (u, v, seconds,
periods) says: v of period q starts no earlier than `seconds` after u of period q - periods.

    P      when
    1      nothing tells micro-batches apart: no window, and updates take no time, or their time is spread evenly
    k      otherwise: one window of accumulation, with its update

A stage whose depth is d does B0, F(d), B1, F(d+1), ... then, so its own edges do not depend on d; between stages the
difference of two depths is a number of periods.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from attrs import frozen

from petra_graph.compiler.simulator.model import ChannelTiming, Pipeline, TimedStage
from petra_graph.program.channels import ChannelKey
from petra_graph.program.schedule import Action, Verb, order


class StartNode(NamedTuple):
    """The start of an operation, or of a transfer where `channel` says which."""

    stage: int
    verb: Verb
    micro_batch: int
    """Below P."""
    channel: ChannelKey | None = None


class Precedence(NamedTuple):
    """`after` waits for `before` of some periods ago."""

    before: StartNode
    after: StartNode
    seconds: float
    periods: int


@frozen(kw_only=True)
class PrecedenceGraph:
    """All waits of a full pipeline."""

    period_micro_batches: int
    """P."""
    nodes: tuple[StartNode, ...]
    """Forwards from the source on, then backwards from the head on: few paths run against this order."""
    edges: tuple[Precedence, ...]


def needs_windows(pipeline: Pipeline) -> bool:
    """Whether a period is a whole window of accumulation."""
    return pipeline.flushes or (
        pipeline.accumulation > 1
        and any(stage.seconds.update > 0 or pipeline.overlaps(stage) for stage in pipeline.stages)
    )


def precedence_graph(pipeline: Pipeline, *, windows: bool, stages: frozenset[int] | None = None) -> PrecedenceGraph:
    """Return the waits of a pipeline that hosts one stage a device.

    Args:
        pipeline: the stages; the order of operations on each device must be that of its stage.
        windows: a period is a window of accumulation; otherwise one micro-batch, over which updates are spread evenly.
        stages: leave out all others, and what they send; default: none.
    """
    return _Builder(pipeline, windows=windows, stages=stages).build()


class _Builder:
    def __init__(self, pipeline: Pipeline, *, windows: bool, stages: frozenset[int] | None) -> None:
        self._pipeline = pipeline
        self._windows = windows
        self._period = pipeline.accumulation if windows else 1
        self._stages = [stage for stage in pipeline.stages if stages is None or stage.index in stages]
        self._seconds = {stage.index: self._durations(stage) for stage in self._stages}
        self._spread = {
            stage.index: 0.0 if windows else stage.seconds.update / stage.accumulation for stage in self._stages
        }
        kept = self._seconds.keys()
        self._hops = {
            channel: hop for channel, hop in pipeline.channels.items() if hop.sender in kept and hop.receiver in kept
        }
        self._sends: dict[tuple[int, Verb], list[ChannelKey]] = {}
        self._links: dict[tuple[str, str], list[ChannelKey]] = {}
        for channel, hop in self._hops.items():
            self._sends.setdefault((hop.sender, channel.direction), []).append(channel)
            if hop.link is not None:
                self._links.setdefault(hop.link, []).append(channel)
        occupied = {hop.link for hop in self._hops.values() if hop.occupies_seconds}
        self._entering = {channel for channel, hop in self._hops.items() if hop.link in occupied}
        """Channels whose transfers may wait for the link."""

    def build(self) -> PrecedenceGraph:
        edges = [edge for stage in self._stages for edge in self._own(stage)]
        edges += [edge for channel, hop in self._hops.items() for edge in self._messages(channel, hop)]
        edges += [edge for channels in self._links.values() for edge in self._turns(channels)]
        for channel, hop in self._hops.items():
            if hop.slots is not None:
                edges += self.slot_edges(channel, hop.slots)
        return PrecedenceGraph(period_micro_batches=self._period, nodes=tuple(self._nodes()), edges=tuple(edges))

    def _durations(self, stage: TimedStage) -> Mapping[Verb, float]:
        seconds = self._pipeline.seconds(stage)
        return {"forward": seconds.forward, "backward": seconds.backward, "update": seconds.update}

    def _nodes(self) -> Iterator[StartNode]:
        for stage in self._stages:
            for m in range(self._period):
                yield from self._operation(stage, "forward", m)
        for stage in reversed(self._stages):
            for m in range(self._period):
                yield from self._operation(stage, "backward", m)
            if self._windows:
                yield StartNode(stage.index, "update", self._period - 1)

    def _operation(self, stage: TimedStage, verb: Verb, micro_batch: int) -> Iterator[StartNode]:
        yield StartNode(stage.index, verb, micro_batch)
        for channel in self._sends.get((stage.index, verb), ()):
            if channel in self._entering:
                yield StartNode(stage.index, verb, micro_batch, channel)

    def _edge(self, before: StartNode, after: StartNode, seconds: float) -> Precedence:
        """Make an edge between nodes of any micro-batches."""
        periods = after.micro_batch // self._period - before.micro_batch // self._period
        return Precedence(self._first(before), self._first(after), seconds, periods)

    def _first(self, node: StartNode) -> StartNode:
        return node._replace(micro_batch=node.micro_batch % self._period)

    def _own(self, stage: TimedStage) -> Iterator[Precedence]:
        """Yield the waits between a stage's own operations."""
        actions = list(self._actions(stage))
        actions += [Action(action.verb, action.micro_batch + self._period) for action in actions]
        half = len(actions) // 2
        for place in range(half, 2 * half):
            after = StartNode(stage.index, actions[place].verb, actions[place].micro_batch)
            for action, in_turn in _awaited(actions, place, overlaps=self._pipeline.overlaps(stage)):
                before = StartNode(stage.index, action.verb, action.micro_batch)
                seconds = self._seconds[stage.index][action.verb]
                if action.verb == "backward":
                    seconds += self._spread[stage.index]
                yield self._edge(before, after, seconds)
                if in_turn and self._pipeline.blocking_sends:
                    yield from self._until_arrived(before, after)

    def _until_arrived(self, before: StartNode, after: StartNode) -> Iterator[Precedence]:
        for channel in self._sends.get((before.stage, before.verb), ()):
            yield self._arrival(before, channel, after)

    def _arrival(self, sent: StartNode, channel: ChannelKey, after: StartNode) -> Precedence:
        """What waits for the message that an operation sends."""
        if channel in self._entering:
            return self._edge(sent._replace(channel=channel), after, self._hops[channel].seconds)
        return self._edge(sent, after, self._seconds[sent.stage][sent.verb] + self._hops[channel].seconds)

    def _actions(self, stage: TimedStage) -> Iterator[Action]:
        """Yield one period of a stage's order."""
        if self._pipeline.flushes:
            yield from order(stage.depth, range(self._period), stage.accumulation)
            return
        for m in range(self._period):
            yield Action("backward", m)
            if self._windows and m == self._period - 1:
                yield Action("update", m)
            yield Action("forward", m + stage.depth)

    def _messages(self, channel: ChannelKey, hop: ChannelTiming) -> Iterator[Precedence]:
        for m in range(self._period):
            sent = StartNode(hop.sender, channel.direction, m)
            read = StartNode(hop.receiver, channel.direction, m)
            if channel in self._entering:
                yield self._edge(sent, sent._replace(channel=channel), self._seconds[hop.sender][channel.direction])
            yield self._arrival(sent, channel, read)

    def slot_edges(self, channel: ChannelKey, slots: int) -> Iterator[Precedence]:
        hop = self._hops[channel]
        for m in range(self._period):
            read = StartNode(hop.receiver, channel.direction, m)
            later = StartNode(hop.sender, channel.direction, m + slots)
            yield self._edge(read, later, self._seconds[hop.receiver][channel.direction])

    def _turns(self, channels: Sequence[ChannelKey]) -> Iterator[Precedence]:
        """Yield that messages enter a link one after another; one stage sends them all, in one direction."""
        if channels[0] not in self._entering:
            return
        turns = [
            StartNode(self._hops[channel].sender, channel.direction, m, channel)
            for m in range(self._period)
            for channel in channels
        ]
        turns.append(turns[0]._replace(micro_batch=self._period))
        for before, after in pairwise(turns):
            assert before.channel is not None
            yield self._edge(before, after, self._hops[before.channel].occupies_seconds)


def _awaited(actions: Sequence[Action], place: int, *, overlaps: bool) -> Iterator[tuple[Action, bool]]:
    """Yield what an operation awaits of its own stage, and whether that runs on the same stream.

    `events` says what an order means on a device that overlaps.
    """
    if not overlaps:
        yield actions[place - 1], True
        return
    action = actions[place]
    forwards = action.verb == "forward"
    before = actions[place - 1 :: -1]
    yield next(each for each in before if (each.verb == "forward") == forwards), True
    if action.verb == "backward":
        yield Action("forward", action.micro_batch), False
    else:
        other = next((each for each in before if (each.verb == "forward") != forwards), None)
        if other is not None:
            yield other, False
