"""The exact period of a full pipeline with one stage a device: the slowest cycle of its precedences.

A node is the start of an operation or of a transfer, for micro-batch r, r + P, r + 2P, ... An edge (u, v, seconds,
periods) means: v of period q starts no earlier than `seconds` after u of period q - periods.

    P      when
    1      all micro-batches are alike: no flush, and updates take no time (or k = 1)
    k      otherwise: one window of accumulation, with its update

A stage whose depth is d does F(d-1), B0, F(d), B1, ... then, so its own edges do not depend on d; between stages the
difference of two depths is a number of periods.

A full pipeline ends up periodic, and no faster than any of its cycles allows (Baccelli, Cohen, Olsder and Quadrat 1992,
*Synchronization and Linearity*, theorem 2.23). The largest ratio of seconds to periods is found by Dinkelbach's method: take a lower
bound, look for a cycle that takes longer, take its ratio as the next bound. Longest paths are swept in the order of the nodes, in
which few paths run backwards, so that a few sweeps settle graphs of thousands of stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from attrs import evolve, frozen

from petra_graph.compiler.simulator.pipeline import ChannelTiming, Pipeline, TimedStage
from petra_graph.program.channels import ChannelKey
from petra_graph.program.schedule import Action, Verb

_ROUNDING = 1e-12
"""Rounding error of sums of floats, relative to a period and the longest wait."""


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
    """Whether a period is a whole window of accumulation, with its update as an operation of its own."""
    updates = pipeline.accumulation > 1 and any(stage.seconds.update > 0 for stage in pipeline.stages)
    return pipeline.flushes or updates


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
        (past, first), (later, second) = (divmod(one.micro_batch, self._period) for one in (before, after))
        return Precedence(before._replace(micro_batch=first), after._replace(micro_batch=second), seconds, later - past)

    def _stage_edges(self, stage: TimedStage) -> Iterator[Precedence]:
        """Yield that each of a stage's operations waits for the one before it."""
        actions = list(self._actions(stage))
        last = actions[-1]._replace(micro_batch=actions[-1].micro_batch - self._period)
        for action, following in pairwise([last, *actions]):
            seconds = self._seconds[stage.index].of(action.verb)
            if action.verb == "backward":
                seconds += self._spread[stage.index]
            yield self._edge(StartNode(stage.index, *action), StartNode(stage.index, *following), seconds)

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


@frozen(kw_only=True)
class CriticalCycle:
    """The slowest cycle."""

    seconds: float
    """Of one period."""
    cycle: tuple[Precedence, ...]
    """In order, each edge's `after` being the next one's `before`."""


class CycleFinder:
    """Finds cycles of one graph that take longer than a bound."""

    def __init__(self, graph: PrecedenceGraph) -> None:
        self._edges = graph.edges
        number = {node: place for place, node in enumerate(graph.nodes)}
        self._source = [number[edge.before] for edge in graph.edges]
        self._incoming: list[list[int]] = [[] for _ in number]
        for place, edge in enumerate(graph.edges):
            self._incoming[number[edge.after]].append(place)
        self._longest = max((edge.seconds for edge in graph.edges), default=0.0)

    def slower_than(self, seconds: float) -> CriticalCycle | None:
        """Return a cycle that takes longer than `seconds` a period, None if there is none.

        Longest paths from all nodes grow for ever along such a cycle, and settle where there is none.
        """
        incoming = [
            [(self._source[p], self._edges[p].seconds - seconds * self._edges[p].periods, p) for p in places]
            for places in self._incoming
        ]
        starts = [0.0] * len(incoming)
        latest = [-1] * len(incoming)  # For each node, the edge that last moved its start.
        slack = _ROUNDING * (abs(seconds) + self._longest)
        for sweep in range(len(starts) + 2):
            changed = False
            for node, edges in enumerate(incoming):
                best = starts[node] + slack
                for source, weight, place in edges:
                    if starts[source] + weight > best:
                        best = starts[source] + weight
                        starts[node] = best
                        latest[node] = place
                        changed = True
            if not changed:
                return None
            if sweep % 2 and (found := self._cycle(latest)):  # A search costs less than a sweep.
                return found
        found = self._cycle(latest)
        assert found is not None
        return found

    def _cycle(self, latest: Sequence[int]) -> CriticalCycle | None:
        """Follow the latest edges back; return the slowest cycle among them."""
        seen = [-1] * len(latest)
        found: list[CriticalCycle] = []
        for start in range(len(latest)):
            node = start
            while seen[node] == -1 and latest[node] != -1:
                seen[node] = start
                node = self._source[latest[node]]
            if latest[node] != -1 and seen[node] == start:
                found.append(self._closed(latest, node))
        return max(found, key=lambda critical: critical.seconds, default=None)

    def _closed(self, latest: Sequence[int], node: int) -> CriticalCycle:
        """Return the cycle through `node`."""
        cycle: list[Precedence] = []
        at = node
        while not cycle or at != node:
            cycle.append(self._edges[latest[at]])
            at = self._source[latest[at]]
        cycle.reverse()
        periods = sum(edge.periods for edge in cycle)
        assert periods > 0, "a cycle that can never begin: depths grow along an edge"
        return CriticalCycle(seconds=sum(edge.seconds for edge in cycle) / periods, cycle=tuple(cycle))


def slowest_cycle(graph: PrecedenceGraph, at_least: float) -> CriticalCycle:
    """Return the cycle that sets the period.

    Args:
        at_least: a lower bound of the period in seconds; the closer, the faster.

    Returns:
        The slowest cycle; where none is slower than `at_least`, that and no cycle.
    """
    finder = CycleFinder(graph)
    critical = CriticalCycle(seconds=at_least, cycle=())
    while (slower := finder.slower_than(critical.seconds)) and slower.seconds > critical.seconds:
        critical = slower
    return critical
