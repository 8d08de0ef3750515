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

from petra_graph.compiler.simulation.model import Hop, Lane, Pipeline, Stage
from petra_graph.program.schedule import Action, Verb, order


class Node(NamedTuple):
    """The start of an operation, or of a transfer where `lane` says which."""

    stage: int
    verb: Verb
    micro_batch: int
    """Below P."""
    lane: Lane | None = None


class Edge(NamedTuple):
    """`after` waits for `before` of some periods ago."""

    before: Node
    after: Node
    seconds: float
    periods: int


@frozen(kw_only=True)
class Waits:
    """All waits of a full pipeline."""

    period_micro_batches: int
    """P."""
    nodes: tuple[Node, ...]
    """Forwards from the source on, then backwards from the head on: few paths run against this order."""
    edges: tuple[Edge, ...]


def needs_windows(pipeline: Pipeline) -> bool:
    """Whether a period is a whole window of accumulation."""
    return pipeline.flushes or (
        pipeline.accumulation > 1
        and any(stage.seconds.update > 0 or pipeline.overlaps(stage) for stage in pipeline.stages)
    )


def waits(pipeline: Pipeline, *, windows: bool, stages: frozenset[int] | None = None) -> Waits:
    """Return the waits of a pipeline that hosts one stage a device.

    Args:
        pipeline: the stages; the order of operations on each device must be that of its stage.
        windows: a period is a window of accumulation; otherwise one micro-batch, over which updates are spread evenly.
        stages: leave out all others, and what they send; default: none.
    """
    return _Builder(pipeline, windows=windows, stages=stages).build()


class SlotWaits:
    """The waits that slots add: an operation that sends awaits the end of the one that frees a place."""

    def __init__(self, pipeline: Pipeline, *, windows: bool) -> None:
        self._builder = _Builder(pipeline, windows=windows, stages=None)
        self._made: dict[tuple[Lane, int], tuple[Edge, ...]] = {}

    def of(self, slots: Mapping[Lane, int]) -> list[Edge]:
        """Return those of some lanes' slots."""
        found: list[Edge] = []
        for key in slots.items():
            if key not in self._made:
                self._made[key] = tuple(self._builder.slot_edges(*key))
            found += self._made[key]
        return found


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
        self._hops = {lane: hop for lane, hop in pipeline.lanes.items() if hop.sender in kept and hop.receiver in kept}
        self._sends: dict[tuple[int, Verb], list[Lane]] = {}
        self._links: dict[tuple[str, str], list[Lane]] = {}
        for lane, hop in self._hops.items():
            self._sends.setdefault((hop.sender, lane.direction), []).append(lane)
            if hop.link is not None:
                self._links.setdefault(hop.link, []).append(lane)
        occupied = {hop.link for hop in self._hops.values() if hop.occupies_seconds}
        self._entering = {lane for lane, hop in self._hops.items() if hop.link in occupied}
        """Lanes whose transfers may wait for the link."""

    def build(self) -> Waits:
        edges = [edge for stage in self._stages for edge in self._own(stage)]
        edges += [edge for lane, hop in self._hops.items() for edge in self._messages(lane, hop)]
        edges += [edge for lanes in self._links.values() for edge in self._turns(lanes)]
        for lane, hop in self._hops.items():
            if hop.slots is not None:
                edges += self.slot_edges(lane, hop.slots)
        return Waits(period_micro_batches=self._period, nodes=tuple(self._nodes()), edges=tuple(edges))

    def _durations(self, stage: Stage) -> Mapping[Verb, float]:
        seconds = self._pipeline.seconds(stage)
        return {"forward": seconds.forward, "backward": seconds.backward, "update": seconds.update}

    def _nodes(self) -> Iterator[Node]:
        for stage in self._stages:
            for m in range(self._period):
                yield from self._operation(stage, "forward", m)
        for stage in reversed(self._stages):
            for m in range(self._period):
                yield from self._operation(stage, "backward", m)
            if self._windows:
                yield Node(stage.index, "update", self._period - 1)

    def _operation(self, stage: Stage, verb: Verb, micro_batch: int) -> Iterator[Node]:
        yield Node(stage.index, verb, micro_batch)
        for lane in self._sends.get((stage.index, verb), ()):
            if lane in self._entering:
                yield Node(stage.index, verb, micro_batch, lane)

    def _edge(self, before: Node, after: Node, seconds: float) -> Edge:
        """Make an edge between nodes of any micro-batches."""
        periods = after.micro_batch // self._period - before.micro_batch // self._period
        return Edge(self._first(before), self._first(after), seconds, periods)

    def _first(self, node: Node) -> Node:
        return node._replace(micro_batch=node.micro_batch % self._period)

    def _own(self, stage: Stage) -> Iterator[Edge]:
        """Yield the waits between a stage's own operations."""
        actions = list(self._actions(stage))
        actions += [Action(action.verb, action.micro_batch + self._period) for action in actions]
        half = len(actions) // 2
        for place in range(half, 2 * half):
            after = Node(stage.index, actions[place].verb, actions[place].micro_batch)
            for action, in_turn in _awaited(actions, place, overlaps=self._pipeline.overlaps(stage)):
                before = Node(stage.index, action.verb, action.micro_batch)
                seconds = self._seconds[stage.index][action.verb]
                if action.verb == "backward":
                    seconds += self._spread[stage.index]
                yield self._edge(before, after, seconds)
                if in_turn and self._pipeline.blocking_sends:
                    yield from self._until_arrived(before, after)

    def _until_arrived(self, before: Node, after: Node) -> Iterator[Edge]:
        for lane in self._sends.get((before.stage, before.verb), ()):
            yield self._arrival(before, lane, after)

    def _arrival(self, sent: Node, lane: Lane, after: Node) -> Edge:
        """What waits for the message that an operation sends."""
        if lane in self._entering:
            return self._edge(sent._replace(lane=lane), after, self._hops[lane].seconds)
        return self._edge(sent, after, self._seconds[sent.stage][sent.verb] + self._hops[lane].seconds)

    def _actions(self, stage: Stage) -> Iterator[Action]:
        """Yield one period of a stage's order."""
        if self._pipeline.flushes:
            yield from order(stage.depth, range(self._period), stage.accumulation)
            return
        for m in range(self._period):
            yield Action("backward", m)
            if self._windows and m == self._period - 1:
                yield Action("update", m)
            yield Action("forward", m + stage.depth)

    def _messages(self, lane: Lane, hop: Hop) -> Iterator[Edge]:
        for m in range(self._period):
            sent = Node(hop.sender, lane.direction, m)
            read = Node(hop.receiver, lane.direction, m)
            if lane in self._entering:
                yield self._edge(sent, sent._replace(lane=lane), self._seconds[hop.sender][lane.direction])
            yield self._arrival(sent, lane, read)

    def slot_edges(self, lane: Lane, slots: int) -> Iterator[Edge]:
        hop = self._hops[lane]
        for m in range(self._period):
            read = Node(hop.receiver, lane.direction, m)
            later = Node(hop.sender, lane.direction, m + slots)
            yield self._edge(read, later, self._seconds[hop.receiver][lane.direction])

    def _turns(self, lanes: Sequence[Lane]) -> Iterator[Edge]:
        """Yield that messages enter a link one after another; one stage sends them all, in one direction."""
        if lanes[0] not in self._entering:
            return
        turns = [Node(self._hops[lane].sender, lane.direction, m, lane) for m in range(self._period) for lane in lanes]
        turns.append(turns[0]._replace(micro_batch=self._period))
        for before, after in pairwise(turns):
            assert before.lane is not None
            yield self._edge(before, after, self._hops[before.lane].occupies_seconds)


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
