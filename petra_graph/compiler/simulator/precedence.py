"""The precedence graph of a full pipeline: a periodic graph of operations that wait for one another.

A node is the start of an operation or of a transfer, for micro-batch r, r + P, r + 2P, ... An edge (u, v, seconds,
periods) means: v of period q starts no earlier than `seconds` after u of period q - periods.

    P      when
    1      all micro-batches are alike: no overlap, no flush, and updates take no time (or k = 1)
    k      otherwise: one window of accumulation, with its update

A stage whose depth is d does F(d-1), B0, F(d), B1, ... then, so its own edges do not depend on d; between stages the
difference of two depths is a number of periods.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from attrs import evolve, frozen

from petra_graph.compiler.simulator.pipeline import ChannelTiming, Pipeline, TimedStage
from petra_graph.program.channels import ChannelKey
from petra_graph.program.schedule import Action, Verb


class StartNode(NamedTuple):
    """The start of an operation, or of its transfer on `channel`."""

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
    """All precedences of a full pipeline."""

    period_micro_batches: int
    """P."""
    nodes: tuple[StartNode, ...]
    """Forwards from the source on, then backwards from the head on: few paths run against this order."""
    edges: tuple[Precedence, ...]


def needs_windows(pipeline: Pipeline) -> bool:
    """Whether a period is a whole window of accumulation, with its update as an operation of its own.

    On a device that overlaps, an update waits for forwards, at k = 1 too, and if it takes no time.
    """
    return (
        pipeline.flushes
        or pipeline.overlap
        or (pipeline.accumulation > 1 and any(stage.seconds.update > 0 for stage in pipeline.stages))
    )


def precedence_graph(pipeline: Pipeline, stages: frozenset[int] | None = None) -> PrecedenceGraph:
    """Return the precedences of a pipeline that hosts one stage a device.

    Args:
        pipeline: the stages; the order of operations on each device must be that of its stage.
        stages: the graph has these stages alone; None: all.
    """
    return _Builder(pipeline, stages).build()


class _Builder:
    """Builds the precedence graph of some stages."""

    def __init__(self, pipeline: Pipeline, stages: frozenset[int] | None) -> None:
        self._pipeline = pipeline
        self._windows = needs_windows(pipeline)
        self._period = pipeline.accumulation if self._windows else 1
        self._stages = [stage for stage in pipeline.stages if stages is None or stage.index in stages]
        self._seconds = {stage.index: stage.seconds for stage in self._stages}
        self._spread = {
            stage.index: 0.0 if self._windows else stage.seconds.update / stage.accumulation for stage in self._stages
        }
        kept = self._seconds.keys()
        self._channels = {
            key: timing
            for key, timing in pipeline.channels.items()
            if timing.sender in kept and timing.receiver in kept
        }
        self._sends: dict[tuple[int, Verb], list[ChannelKey]] = {}
        self._links: dict[tuple[str, str], list[ChannelKey]] = {}
        for key, timing in self._channels.items():
            self._sends.setdefault((timing.sender, key.direction), []).append(key)
            if timing.link is not None:
                self._links.setdefault(timing.link, []).append(key)
        occupied = {timing.link for timing in self._channels.values() if timing.occupies_seconds}
        self._entering = {key for key, timing in self._channels.items() if timing.link in occupied}
        """Channels whose transfers may wait for the link."""

    def build(self) -> PrecedenceGraph:
        edges = [edge for stage in self._stages for edge in self._stage_edges(stage)]
        edges += [edge for key, timing in self._channels.items() for edge in self._message_edges(key, timing)]
        edges += [edge for keys in self._links.values() for edge in self._link_edges(keys)]
        for key, timing in self._channels.items():
            if timing.capacity is not None:
                edges += self._capacity_edges(key, timing, timing.capacity)
        return PrecedenceGraph(period_micro_batches=self._period, nodes=tuple(self._nodes()), edges=tuple(edges))

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
        """Return an edge between nodes of any micro-batches, shifted to the first period."""
        (past, first), (later, second) = (
            divmod(before.micro_batch, self._period),
            divmod(after.micro_batch, self._period),
        )
        return Precedence(before._replace(micro_batch=first), after._replace(micro_batch=second), seconds, later - past)

    def _stage_edges(self, stage: TimedStage) -> Iterator[Precedence]:
        """Yield the precedences between a stage's own operations."""
        actions = list(self._actions(stage))
        actions += [Action(action.verb, action.micro_batch + self._period) for action in actions]
        for place in range(len(actions) // 2, len(actions)):
            after = StartNode(stage.index, actions[place].verb, actions[place].micro_batch)
            for action in _preceding(actions, place, overlap=self._pipeline.overlap):
                seconds = self._seconds[stage.index].of(action.verb)
                if action.verb == "backward":
                    seconds += self._spread[stage.index]
                yield self._edge(StartNode(stage.index, action.verb, action.micro_batch), after, seconds)

    def _actions(self, stage: TimedStage) -> Iterator[Action]:
        """Yield one period of a stage's order."""
        if self._pipeline.flushes:
            yield from evolve(stage, flush="drain").actions(self._period)
            return
        for m in range(self._period):
            yield Action("forward", m + stage.depth - 1)
            yield Action("backward", m)
            if self._windows and m == self._period - 1:
                yield Action("update", m)

    def _message_edges(self, key: ChannelKey, timing: ChannelTiming) -> Iterator[Precedence]:
        """Yield that an operation starts after its messages have arrived."""
        seconds = self._seconds[timing.sender].of(key.direction)
        for m in range(self._period):
            sent = StartNode(timing.sender, key.direction, m)
            read = StartNode(timing.receiver, key.direction, m)
            if key in self._entering:
                transfer = sent._replace(channel=key)
                yield self._edge(sent, transfer, seconds)
                yield self._edge(transfer, read, timing.seconds)
            else:
                yield self._edge(sent, read, seconds + timing.seconds)

    def _capacity_edges(self, key: ChannelKey, timing: ChannelTiming, capacity: int) -> Iterator[Precedence]:
        """Yield that an operation starts after its channel has room."""
        for m in range(self._period):
            read = StartNode(timing.receiver, key.direction, m)
            later = StartNode(timing.sender, key.direction, m + capacity)
            yield self._edge(read, later, self._seconds[timing.receiver].of(key.direction))

    def _link_edges(self, keys: Sequence[ChannelKey]) -> Iterator[Precedence]:
        """Yield that messages enter a link one after another; one stage sends them all, in one direction."""
        if keys[0] not in self._entering:
            return
        transfers = [
            StartNode(self._channels[key].sender, key.direction, m, key) for m in range(self._period) for key in keys
        ]
        transfers.append(transfers[0]._replace(micro_batch=self._period))
        for before, after in pairwise(transfers):
            assert before.channel is not None
            yield self._edge(before, after, self._channels[before.channel].occupies_seconds)


def _preceding(actions: Sequence[Action], place: int, *, overlap: bool) -> Iterator[Action]:
    """Yield the operations of the same stage that end before an operation starts.

    `simulation` describes an order on a device that overlaps.
    """
    if not overlap:
        yield actions[place - 1]
        return
    action = actions[place]
    forwards = action.verb == "forward"
    before = actions[place - 1 :: -1]
    yield next(each for each in before if (each.verb == "forward") == forwards)
    if action.verb == "backward":
        yield Action("forward", action.micro_batch)
    else:
        other = next((each for each in before if (each.verb == "forward") != forwards), None)
        if other is not None:
            yield other
