"""The speed of a pipeline, read off its simulation: the tick, what limits it, filling, draining, and the least depths at full speed.

    an epoch of n micro-batches = overhead + n * tick

The tick is the seconds of a micro-batch once the pipeline is full. It is found when the whole state of the simulation recurs: what comes
next in every stage, what is under way, and when each device and link is free. The head alone does not show this: it may proceed evenly
for long while a queue before it runs empty. Where no state recurs soon, the tick is a mean, and says so.

The least depths, `schedule = "auto"`, keep the busiest device or link busy: its seconds are the tick of the same stages if forwards could
run ahead without bound. The depths that no schedule of that tick can go below follow from the way of a micro-batch to the head and
back, and mostly suffice. Otherwise all stages run further ahead until the tick gains nothing, and each stage with those
before it is lowered again, from the head on, since only the difference of two depths loosens waits.

Decision: 0.1 % of throughput may be lost. Without such a margin a bottleneck's depth depends on rounding.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from math import ceil

import networkx as nx
from attrs import frozen

from petra_graph.compiler.simulation import Pipeline, Simulation, TimedStage
from petra_graph.graph.node_graph import distances
from petra_graph.program.channels import ChannelKey
from petra_graph.program.schedule import Action, Verb

TOLERANCE = 1e-3
"""Of throughput, which least depths may lose."""
_ROUNDING = 1e-9
_OPERATIONS = 6_000
"""Operations in the longest simulation that waits for a state to recur."""
_OF_OVERHEAD = 150_000
"""Operations in the longest simulation for the overhead."""
_FURTHER = (1, 2, 4, 8, 16)
"""What depths are raised by, for each stage up to the head."""


@frozen(kw_only=True)
class Tick:
    """Seconds a micro-batch in the steady state."""

    seconds: float
    exact: bool
    """False for a mean over most of a simulation in which no state recurred."""


def tick(pipeline: Pipeline) -> Tick:
    """Simulate a pipeline, whose depths grow along no edge, until a state recurs at the source, whole windows apart."""
    least = full_speed(pipeline)
    if len(pipeline.hosted) == 1:  # Some stage always has its messages.
        return Tick(seconds=least, exact=True)
    simulation, window = Simulation(pipeline, sys.maxsize), pipeline.accumulation
    most = max(_OPERATIONS, 8 * window * len(pipeline.stages))  # Four windows at least.
    seen: dict[Hashable, int] = {}
    starts: dict[int, list[int]] = {pipeline.stages[0].index: [], pipeline.head.index: []}
    source = starts[pipeline.stages[0].index]

    def mean(times: Sequence[int], periods: int) -> float:
        return simulation.seconds((times[-1] - times[-1 - periods]) / (periods * window))

    for operations, one in enumerate(simulation, start=1):
        (stage, (verb, micro_batch), start, _) = one
        if verb != "forward" or micro_batch % window or stage.index not in starts:
            continue
        starts[stage.index].append(start)
        if stage is not pipeline.stages[0]:
            continue
        before = seen.setdefault(simulation.state(one), len(source))
        if before < len(source):
            return Tick(seconds=max(mean(source, len(source) - before), least), exact=True)
        if operations > most:
            break
    means = (mean(times, len(times) * 2 // 3) for times in starts.values() if len(times) > 1)
    return Tick(seconds=max(*means, least), exact=False)


def full_speed(pipeline: Pipeline) -> float:
    """Return the seconds of a micro-batch on the busiest device or link: the tick, if forwards could run ahead without bound."""
    return max(*_work_seconds(pipeline).values(), *_link_seconds(pipeline).values(), 0.0)


def _work_seconds(pipeline: Pipeline) -> Mapping[str, float]:
    """Return each device's seconds of work for a micro-batch."""
    return {
        device: sum(stage.seconds.forward for stage in stages)
        + sum(stage.seconds.backward + stage.seconds.update / stage.accumulation for stage in stages)
        for device, stages in pipeline.hosted.items()
    }


def _link_seconds(pipeline: Pipeline) -> Mapping[tuple[str, str], float]:
    """Return the seconds for which each link is occupied by a micro-batch's messages."""
    found: dict[tuple[str, str], float] = {}
    for channel in pipeline.channels.values():
        if channel.link is not None:
            found[channel.link] = found.get(channel.link, 0.0) + channel.occupies_seconds
    return found


@frozen
class Event:
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
    events = [
        Event(stage.index, stage.device, *action, simulation.seconds(start), simulation.seconds(end))
        for stage, action, start, end in simulation
    ]
    return Timeline(head=pipeline.head.index, events=tuple(sorted(events, key=lambda event: event.start)))


@frozen(kw_only=True)
class Timing:
    """The speed of a pipeline."""

    tick_seconds: float
    """A micro-batch, in the steady state; fills and drains of flushed windows are in it."""
    exact: bool
    """The tick is a period of the simulation, not a mean over it."""
    utilisation: Mapping[str, float]
    """For each device, the share of the steady state in which it works."""
    exchange: Mapping[str, float]
    """For each device, the share in which it waits for the all-reduce of replicas: a part of the bubble."""
    fill_seconds: float
    """Until the head starts its first forward."""
    drain_seconds: float
    """From the end of the head's last backward to the end of everything."""
    overhead_seconds: float
    """Of a run between two drains, beyond its ticks."""
    exposed_links: float
    """The share of the devices' time by which messages on links lengthen the steady state."""

    @property
    def bubble_fraction(self) -> float:
        """The share of all devices' time in which nothing is computed, in the steady state."""
        return max(0.0, 1 - sum(self.utilisation.values()) / len(self.utilisation))

    @property
    def exchange_fraction(self) -> float:
        """The share of all devices' time in which they wait for the all-reduce of replicas."""
        return sum(self.exchange.values()) / len(self.exchange)

    def samples_per_second(self, batch: int, replicas: int = 1) -> float:
        """Return the throughput of the steady state; `batch` is the samples in a micro-batch of one replica."""
        return batch * replicas / self.tick_seconds if self.tick_seconds else 0.0


def timing(pipeline: Pipeline) -> Timing:
    """Return the speed of a pipeline.

    The overhead is read from a simulation long enough to be steady in its middle; for pipelines too large for that, it is the time
    in which one micro-batch goes forward to the head and back.
    """
    steady = tick(pipeline)
    windows = 2 + 2 * max(stage.depth for stage in pipeline.stages) // pipeline.accumulation
    count = windows * pipeline.accumulation
    small = 2 * count * len(pipeline.stages) <= _OF_OVERHEAD
    timeline = simulate(pipeline, count if small else 1)
    fill, drain = timeline.fill_seconds, timeline.drain_seconds

    def shares(of: Callable[[TimedStage], float]) -> Mapping[str, float]:
        seconds = {device: sum(map(of, stages)) for device, stages in pipeline.hosted.items()}
        return {device: one / steady.seconds if steady.seconds else 0.0 for device, one in seconds.items()}

    exposed = 0.0
    if steady.seconds and any(channel.seconds for channel in pipeline.channels.values()):
        exposed = max(0.0, 1 - tick(pipeline.with_free_links()).seconds / steady.seconds)
    return Timing(
        tick_seconds=steady.seconds,
        exact=steady.exact,
        utilisation=shares(lambda stage: stage.seconds.per_micro_batch(stage.accumulation)),
        exchange=shares(lambda stage: stage.seconds.exchange / stage.accumulation),
        fill_seconds=fill,
        drain_seconds=drain,
        overhead_seconds=timeline.seconds - count * steady.seconds if small else fill + drain,
        exposed_links=exposed,
    )


def least_depths(pipeline: Pipeline, tolerance: float = TOLERANCE) -> tuple[int, ...]:
    """Return each stage's least depth that costs no throughput: least staleness and least buffer at no loss.

    Args:
        pipeline: costs, edges and devices, of a method that does not flush; its own depths are ignored.
        tolerance: of the throughput, which may be lost.

    Returns:
        Depths that do not grow along edges; the last is 1.
    """

    def seconds(depths: Sequence[int]) -> float:
        return tick(pipeline.with_depths(depths)).seconds

    full = full_speed(pipeline) * (1 + tolerance)
    least = _bounds(pipeline, full)
    depths, reached = least, seconds(least)
    if reached <= full:
        return tuple(depths)
    distance = distances(pipeline.graph)
    for further in _FURTHER:
        deeper = [bound + further * distance[stage.index] for bound, stage in zip(least, pipeline.stages, strict=True)]
        faster = seconds(deeper)
        if faster >= reached * (1 - tolerance):
            break
        depths, reached = deeper, faster
        if reached <= full:
            break
    limit = max(full, reached * (1 + tolerance))
    for stage in reversed(pipeline.stages[:-1]):
        together = {stage.index, *nx.ancestors(pipeline.graph, stage.index)}
        step = 1
        while step:
            lower = [depth - step * (at in together) for at, depth in enumerate(depths, start=1)]
            falls = all(lower[a - 1] >= lower[b - 1] for a, b in pipeline.graph.edges)
            if falls and all(map(int.__ge__, lower, least)) and seconds(lower) <= limit:
                depths, step = lower, 2 * step
            else:
                step = 0 if step == 1 else 1
    return tuple(depths)


def _bounds(pipeline: Pipeline, seconds: float) -> list[int]:
    """Return depths that no schedule of this tick can go below.

    At each stage the backward of a micro-batch starts at least `apart` after its forward. That many ticks, and the
    backward's own time, lie between a forward and the one that is `depth` later. Where forwards and backwards alternate,
    that later forward also ends before the next backward starts, so `apart` grows to fit whole ticks.
    """
    apart: dict[int, float] = {}
    depths: dict[int, int] = {}
    for stage in reversed(pipeline.stages):
        forward, backward = stage.seconds.forward, stage.seconds.backward
        least, depth = forward, 1
        for key, channel in pipeline.channels.items():
            if key.direction == "forward" and channel.sender == stage.index:
                reader = channel.receiver
                both_ways = channel.seconds + pipeline.channels[ChannelKey(key.edge, "backward")].seconds
                waits = apart[reader] + pipeline.stages[reader - 1].seconds.backward + both_ways
                least, depth = max(least, forward + waits), max(depth, depths[reader])
        if stage is not pipeline.head:
            occupied = backward + stage.seconds.update / stage.accumulation
            depth = max(depth, ceil((least + occupied) / seconds - _ROUNDING))
        apart[stage.index] = max(least, seconds * (depth - 1) + forward)
        depths[stage.index] = depth
    return [depths[stage.index] for stage in pipeline.stages]
