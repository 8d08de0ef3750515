"""The speed of a pipeline, read off its simulation: the tick, what limits it, filling, draining, and the least depths at full speed.

The tick is the seconds of a micro-batch once the pipeline is full. It is found when the whole state of the simulation recurs: what comes
next in every stage, what is under way, and when each device and link is free. (The head may proceed evenly for long while a queue before
it runs empty.) Where no state recurs soon, the tick is a mean, and says so.
"""

import sys
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from math import ceil
from typing import NamedTuple

import networkx as nx
from attrs import evolve, frozen

from petra_graph.graph.node_graph import distances
from petra_graph.program.channels import ChannelKey
from petra_graph.program.schedule import Verb
from petra_graph.program.simulation import Pipeline, Simulation

TOLERANCE = 1e-3
"""Of throughput, which least depths may lose: without it a bottleneck's depth depends on rounding."""
_ROUNDING = 1e-9
_OPERATIONS, _FILLS = 6_000, 6
"""Operations in the longest simulation that waits for a state to recur, and times what it takes to fill the pipeline."""
_OF_OVERHEAD = 150_000
"""Operations in the longest simulation for the overhead."""
_FURTHER = (1, 2, 4, 8, 16)
"""What depths are raised by, for each stage up to the head."""


class Tick(NamedTuple):
    """Seconds a micro-batch in the steady state; not exact: a mean over most of a simulation in which no state recurred."""

    seconds: float
    exact: bool


def tick(pipeline: Pipeline) -> Tick:
    """Simulate a pipeline, whose depths grow along no edge, until a state recurs at the source, whole windows apart."""
    least, window = full_speed(pipeline), pipeline.accumulation
    if len(pipeline.hosted) == 1:  # Some stage always has its messages.
        return Tick(least, exact=True)
    simulation, seen = Simulation(pipeline, range(sys.maxsize)), dict[Hashable, int]()
    # Four windows at least, and some times what it takes to fill the pipeline: before that, no stage has its pace.
    most = max(_OPERATIONS, 8 * window * len(pipeline.stages), _FILLS * sum(stage.depth for stage in pipeline.stages))
    first, head = pipeline.stages[0], pipeline.stages[-1]
    starts: dict[int, list[int]] = {first.index: [], head.index: []}
    source = starts[first.index]

    def mean(times: Sequence[int], periods: int) -> float:
        return simulation.seconds((times[-1] - times[-1 - periods]) / (periods * window))

    for operations, (stage, (verb, micro_batch), start, _) in enumerate(simulation, start=1):
        if verb != "forward" or micro_batch % window or stage.index not in starts:
            continue
        starts[stage.index].append(start)
        if stage is not first:
            continue
        before = seen.setdefault(simulation.state(micro_batch, start), len(source))
        if before < len(source):
            return Tick(max(mean(source, len(source) - before), least), exact=True)
        if operations > most:
            break
    filled = first.depth // window + 1  # Until then the source runs ahead.
    late = [times for times in starts.values() if len(times) > 1]
    means = (mean(times, max(1, min(len(times) * 2 // 3, len(times) - 1 - filled))) for times in late)
    return Tick(max(*means, least), exact=False)


def full_speed(pipeline: Pipeline) -> float:
    """Return the seconds of a micro-batch on the busiest device or link: the tick, if forwards could run ahead without bound."""
    k = pipeline.accumulation
    devices = (
        sum(one.forward for one in stages) + sum(one.backward + one.update / k for one in stages)
        for stages in pipeline.hosted.values()
    )
    links = defaultdict[tuple[str, str], float](float)
    for channel in pipeline.channels.values():
        if channel.link is not None:
            links[channel.link] += channel.occupies_seconds
    return max(*devices, *links.values(), 0.0)


@frozen
class Event:
    """One operation of a stage; times in seconds."""

    stage: int
    device: str
    verb: Verb
    micro_batch: int
    start: float
    end: float


def simulate(pipeline: Pipeline, micro_batches: int) -> tuple[Event, ...]:
    """Run `micro_batches` from start to drain, and return the operations in the order of their starts."""
    simulation = Simulation(pipeline, range(micro_batches))
    events = (
        Event(stage.index, stage.device, *action, simulation.seconds(start), simulation.seconds(end))
        for stage, action, start, end in simulation
    )
    return tuple(sorted(events, key=lambda event: event.start))


@frozen(kw_only=True)
class Exposed:
    """The shares of all devices' time in which messages are not hidden behind computation."""

    all_reduce: float
    links: float


@frozen(kw_only=True)
class Timing:
    """The speed of the steady state, and what a run takes beside it."""

    tick_seconds: float
    """With fills and drains of flushed windows."""
    samples_per_second: float
    bubble_fraction: float
    exposed_communication: Exposed
    fill_seconds: float
    drain_seconds: float
    """From the end of the head's last backward to the end of everything."""
    overhead_seconds: float
    exact: bool
    speedup: float | None = None
    speedup_over: str | None = None


def device_shares(pipeline: Pipeline, tick_seconds: float) -> Mapping[str, tuple[float, float]]:
    """Return the shares of the steady state in which each device works, and waits for the all-reduce of replicas."""
    k, per_tick = pipeline.accumulation, tick_seconds or 1.0
    return {
        device: (
            sum(one.per_micro_batch(k) for one in stages) / per_tick,
            sum(one.exchange / k for one in stages) / per_tick,
        )
        for device, stages in pipeline.hosted.items()
    }


def timing(pipeline: Pipeline, steady: Tick | None = None, samples: int = 1) -> Timing:
    """Return the speed of a pipeline, of which the tick may be known; `samples` are in a micro-batch of all replicas."""
    steady, head = steady or tick(pipeline), pipeline.stages[-1].index
    # The overhead is read from a simulation long enough to be steady in its middle; for pipelines too large for that, it is the time
    # in which one micro-batch goes forward to the head and back.
    windows = 2 + 2 * max(stage.depth for stage in pipeline.stages) // pipeline.accumulation
    count = windows * pipeline.accumulation
    small = 2 * count * len(pipeline.stages) <= _OF_OVERHEAD
    events = simulate(pipeline, count if small else 1)
    ends = max(event.end for event in events)
    fill = next(event.start for event in events if (event.stage, event.verb) == (head, "forward"))
    drain = ends - max(event.end for event in events if (event.stage, event.verb) == (head, "backward"))

    exposed = 0.0
    if steady.seconds and any(channel.seconds for channel in pipeline.channels.values()):
        free = {key: evolve(one, occupies_seconds=0.0, latency_seconds=0.0) for key, one in pipeline.channels.items()}
        exposed = max(0.0, 1 - tick(evolve(pipeline, channels=free)).seconds / steady.seconds)
    used, waiting = zip(*device_shares(pipeline, steady.seconds).values(), strict=True)
    return Timing(
        tick_seconds=steady.seconds,
        samples_per_second=samples / steady.seconds if steady.seconds else 0.0,
        bubble_fraction=max(0.0, 1 - sum(used) / len(used)),
        exposed_communication=Exposed(all_reduce=sum(waiting) / len(waiting), links=exposed),
        fill_seconds=fill,
        drain_seconds=drain,
        overhead_seconds=ends - count * steady.seconds if small else fill + drain,
        exact=steady.exact,
    )


def least_depths(pipeline: Pipeline, tolerance: float = TOLERANCE) -> tuple[int, ...]:
    """Return each stage's least depth that costs no throughput, in a pipeline that does not flush; its own depths are ignored.

    Those that no schedule at the pace of the busiest device or link can go below mostly suffice. Otherwise all stages run further ahead until
    the tick gains nothing, and each stage with those before it is lowered again, since only the difference of two depths loosens waits.
    """

    def seconds(depths: Sequence[int]) -> float:
        return tick(pipeline.with_depths(depths)).seconds

    full = full_speed(pipeline) * (1 + tolerance)
    depths = least = _bounds(pipeline, full)
    if (reached := seconds(least)) <= full:
        return tuple(depths)
    distance = distances(pipeline.graph)
    for further in _FURTHER:
        deeper = [bound + further * distance[stage.index] for bound, stage in zip(least, pipeline.stages, strict=True)]
        if (faster := seconds(deeper)) >= reached * (1 - tolerance):
            break
        depths, reached = deeper, faster
    limit = max(full, reached * (1 + tolerance))
    for stage in reversed(pipeline.stages[:-1]):
        together = {stage.index, *nx.ancestors(pipeline.graph, stage.index)}
        while True:
            lower = [depth - (at in together) for at, depth in enumerate(depths, start=1)]
            falls = all(lower[a - 1] >= lower[b - 1] for a, b in pipeline.graph.edges)
            if not falls or not all(map(int.__ge__, lower, least)) or seconds(lower) > limit:
                break
            depths = lower
    return tuple(depths)


def _bounds(pipeline: Pipeline, seconds: float) -> list[int]:
    """Return depths that no schedule of this tick can go below."""
    # At each stage the backward of a micro-batch starts at least `apart` after its forward. That many ticks, and the
    # backward's own time, lie between a forward and the one that is `depth` later. Where forwards and backwards alternate,
    # that later forward also ends before the next backward starts, so `apart` grows to fit whole ticks.
    apart, depths = dict[int, float](), dict[int, int]()
    for stage in reversed(pipeline.stages):
        own = pipeline.seconds[stage.index - 1]
        least, depth = own.forward, 1
        for key, channel in pipeline.channels.items():
            if key.direction == "forward" and channel.sender == stage.index:
                reader = channel.receiver
                both_ways = channel.seconds + pipeline.channels[ChannelKey(key.edge, "backward")].seconds
                waits = apart[reader] + pipeline.seconds[reader - 1].backward + both_ways
                least, depth = max(least, own.forward + waits), max(depth, depths[reader])
        if stage is not pipeline.stages[-1]:
            occupied = own.backward + own.update / stage.accumulation
            depth = max(depth, ceil((least + occupied) / seconds - _ROUNDING))
        apart[stage.index] = max(least, seconds * (depth - 1) + own.forward)
        depths[stage.index] = depth
    return [depths[stage.index] for stage in pipeline.stages]
