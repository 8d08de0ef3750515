"""The least depths at full throughput: `schedule = "auto"`.

Full throughput is that of the same stages if forwards could run ahead without bound. Depths are found from the head on,
each the least with which the stages from there to the head keep up, whatever the depths of the stages before it: an
upstream stage that runs further ahead never slows them, since a larger difference of two depths only loosens waits.

    on a chain     no stage can have a smaller depth at full throughput
    on a graph     no stage can, given the depths of the stages after it
    several stages on one device   the durations decide which stage goes first, so depths are tried by simulation:
                   lowering any stage and its ancestors by one would cost throughput

Decision: 0.1 % of throughput may be lost. Without such a margin a bottleneck's depth depends on rounding.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from math import ceil, inf

import networkx as nx
from attrs import evolve

from petra_graph.compiler.simulator.pipeline import Pipeline
from petra_graph.compiler.simulator.steady_state import keeps_up, tick, unbounded_tick, work_seconds
from petra_graph.graph.node_graph import distances
from petra_graph.program.channels import ChannelKey

TOLERANCE = 1e-3
"""Of throughput."""
_FACTORS = (1, 2, 4, 8, 16)
"""Depths in distances to the head that are tried where devices host several stages."""
_ROUNDING = 1e-9


def least_depths(pipeline: Pipeline, tolerance: float = TOLERANCE) -> tuple[int, ...]:
    """Return each stage's least depth that costs no throughput: least staleness and least buffer at no loss.

    Args:
        pipeline: costs, edges and devices, of a method that does not flush; its own depths are ignored.
        tolerance: of the throughput, which may be lost.

    Returns:
        Depths that do not grow along edges; the last is 1.
    """
    if pipeline.one_stage_a_device:
        return _from_the_head(pipeline, unbounded_tick(pipeline) * (1 + tolerance))
    return _on_shared_devices(pipeline, tolerance)


def with_depths(pipeline: Pipeline, depths: Sequence[int]) -> Pipeline:
    """Return the same pipeline with other depths, in the order of its stages."""
    stages = zip(pipeline.stages, depths, strict=True)
    return evolve(pipeline, stages=tuple(evolve(stage, depth=depth) for stage, depth in stages))


def _from_the_head(pipeline: Pipeline, seconds: float) -> tuple[int, ...]:
    """Raise lower bounds, from the head on, until all stages keep up with a tick of `seconds`."""
    depths = _bounds(pipeline, seconds)
    indices = [stage.index for stage in pipeline.stages]

    def suffices(first: int) -> bool:
        """Whether the stages from a position on keep up, if those before never delay them."""
        return keeps_up(with_depths(pipeline, depths), seconds, frozenset(indices[first:]))

    last = len(depths) - 1
    while not suffices(0):
        # The position nearest the head from which on they do not keep up; from `last` on they do.
        last = bisect_left(range(1, last), True, key=suffices)
        _raise_depth(depths, last, suffices)
        _spread_upstream(pipeline, depths)
    return tuple(depths)


def _raise_depth(depths: list[int], position: int, suffices: Callable[[int], bool]) -> None:
    """Raise the depth at `position` to the least with which the stages from there on keep up; doubling, then halving."""

    def deep_enough(depth: int) -> bool:
        depths[position] = depth
        return suffices(position)

    low, step = depths[position], 1
    while not deep_enough(low + step):
        low, step = low + step, 2 * step
    depths[position] = low + 1 + bisect_left(range(low + 1, low + step), True, key=deep_enough)


def _spread_upstream(pipeline: Pipeline, depths: list[int]) -> None:
    """Raise depths so that none grows along an edge."""
    for reader in reversed(list(nx.topological_sort(pipeline.graph))):
        for producer in pipeline.graph.predecessors(reader):
            depths[producer - 1] = max(depths[producer - 1], depths[reader - 1])


def _bounds(pipeline: Pipeline, seconds: float) -> list[int]:
    """Return depths that no schedule of this tick can go below.

    At each stage the backward of a micro-batch starts at least `apart` after its forward. That many ticks, and the
    backward's own time, lie between a forward and the one that is `depth` later. Where forwards and backwards alternate,
    that later forward also ends before the next backward starts, so `apart` grows to fit whole ticks.
    """
    round_trips: dict[int, list[tuple[int, float]]] = {stage.index: [] for stage in pipeline.stages}
    for edge, channel in pipeline.forward_channels.items():
        both_ways = channel.seconds + pipeline.channels[ChannelKey(edge, "backward")].seconds
        round_trips[channel.sender].append((channel.receiver, both_ways))
    backward_of = {stage.index: stage.seconds.backward for stage in pipeline.stages}
    apart: dict[int, float] = {}
    depths: list[int] = []
    for stage in reversed(pipeline.stages):
        forward, backward = stage.seconds.forward, stage.seconds.backward
        waits = (apart[reader] + backward_of[reader] + both_ways for reader, both_ways in round_trips[stage.index])
        least = forward + max(waits, default=0.0)
        occupied = backward + stage.seconds.update / stage.accumulation
        depth = 1 if stage is pipeline.head else max(1, ceil((least + occupied) / seconds - _ROUNDING))
        apart[stage.index] = max(least, seconds * (depth - 1) + forward)
        depths.insert(0, depth)
    _spread_upstream(pipeline, depths)
    return depths


def _on_shared_devices(pipeline: Pipeline, tolerance: float) -> tuple[int, ...]:
    """Try depths with updates spread evenly, whose period is shorter; with windows only where that loses throughput."""
    depths = _by_simulation(_with_spread_updates(pipeline), tolerance)
    full = max(work_seconds(pipeline).values())
    if pipeline.accumulation > 1 and tick(with_depths(pipeline, depths)).seconds > full * (1 + tolerance):
        return _by_simulation(pipeline, tolerance)
    return depths


def _with_spread_updates(pipeline: Pipeline) -> Pipeline:
    """Return the same pipeline with a share of the update at each micro-batch: a period is one micro-batch."""
    stages = tuple(
        evolve(
            stage,
            accumulation=1,
            seconds=evolve(
                stage.seconds,
                update=stage.seconds.update / stage.accumulation,
                exchange=stage.seconds.exchange / stage.accumulation,
            ),
        )
        for stage in pipeline.stages
    )
    return evolve(pipeline, stages=stages)


def _by_simulation(pipeline: Pipeline, tolerance: float) -> tuple[int, ...]:
    """Deepen until the tick gains nothing; then lower each stage with its ancestors, from the head on."""
    best = inf
    full = max(work_seconds(pipeline).values())
    tried: list[tuple[float, list[int]]] = []
    distance = distances(pipeline.graph)
    for factor in _FACTORS:
        depths = [1 + factor * distance[stage.index] for stage in pipeline.stages]
        seconds = tick(with_depths(pipeline, depths)).seconds
        tried.append((seconds, depths))
        gained = best - seconds
        best = min(best, seconds)
        if best <= full * (1 + tolerance) or gained <= best * tolerance:
            break
    limit = max(best, full) * (1 + tolerance)
    depths = next(depths for seconds, depths in tried if seconds <= limit)
    for stage in reversed(pipeline.stages[:-1]):
        depths = _lowered(pipeline, depths, {stage.index, *nx.ancestors(pipeline.graph, stage.index)}, limit)
    return tuple(depths)


def _lowered(pipeline: Pipeline, depths: list[int], stages: Collection[int], seconds: float) -> list[int]:
    """Lower the depths of `stages` together as far as the tick allows; by twice as much at each step that it does."""
    step = 1
    while True:
        lower = [depth - step * (stage in stages) for stage, depth in enumerate(depths, start=1)]
        lowered = with_depths(pipeline, lower)
        if min(lower) >= 1 and lowered.may_run and tick(lowered).seconds <= seconds:
            depths, step = lower, 2 * step
        elif step == 1:
            return depths
        else:
            step = 1
