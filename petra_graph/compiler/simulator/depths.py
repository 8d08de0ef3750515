"""The least depths at full throughput: `schedule = "auto"`.

Full throughput is that of the same stages if forwards could run ahead without bound. Depths are found from the head
on, each the least with which the stages from there to the head keep up, whatever the stages before it will do: a stage
before them that runs further ahead never slows them, since more distance between two depths only loosens waits.

    on a chain     no stage can have a smaller depth at full throughput
    on a graph     no stage can, given the depths of the stages after it
    several stages on one device   what goes first depends on time, so depths are tried by simulation: lowering any
                   stage with all before it by one would cost throughput

Decision: 0.1 % of throughput may be lost. Without such a margin a bottleneck's depth answers to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, inf

from attrs import evolve

from petra_graph.compiler.simulator.model import Pipeline, TimedStage
from petra_graph.compiler.simulator.steady import full_seconds, keeps, tick, work_seconds
from petra_graph.errors import Problem, SpecError
from petra_graph.program.channels import Direction

TOLERANCE = 1e-3
"""Of throughput."""
_FACTORS = (1, 2, 4, 8, 16)
"""Depths in distances to the head that are tried where devices host several stages."""
_ROUNDING = 1e-9


def least_depths(pipeline: Pipeline, tolerance: float = TOLERANCE) -> tuple[int, ...]:
    """Return each stage's least depth that costs no throughput: least staleness and least buffer at no loss.

    Args:
        pipeline: costs, wires and devices; its own depths and slots are not looked at.
        tolerance: of the throughput, which may be lost.

    Returns:
        Depths that do not grow along edges; the last is 1.

    Raises:
        SpecError: the pipeline flushes after each window, so that its depth is no matter of staleness.
    """
    if pipeline.flushes:
        message = "least depths are for methods that do not flush: where the pipeline flushes nothing is stale"
        raise SpecError(Problem(message=message, hint='set flush = "drain"', path=("method", "schedule")))
    unbounded = evolve(pipeline, slots={})
    if pipeline.one_stage_a_device:
        return _from_the_head(unbounded, full_seconds(unbounded) * (1 + tolerance))
    return _shared(unbounded, tolerance)


def with_depths(pipeline: Pipeline, depths: Sequence[int]) -> Pipeline:
    """Return the same pipeline with other depths, in the order of its stages."""
    stages = zip(pipeline.stages, depths, strict=True)
    return evolve(pipeline, stages=tuple(evolve(stage, depth=depth) for stage, depth in stages))


def _from_the_head(pipeline: Pipeline, seconds: float) -> tuple[int, ...]:
    """Raise lower bounds, from the head on, until all stages keep up with a tick of `seconds`."""
    found = _bounds(pipeline, seconds)
    indices = [stage.index for stage in pipeline.stages]

    def kept(first: int) -> bool:
        """Whether the stages from a place on keep up, if those before never make them wait."""
        return keeps(with_depths(pipeline, found), seconds, frozenset(indices[first:]))

    settled = len(found) - 1
    while not kept(0):
        settled = _last_that_fails(kept, settled)
        _gallop(found, settled, kept)
        _spread_upstream(pipeline, found)
    return tuple(found)


def _last_that_fails(kept: Callable[[int], bool], settled: int) -> int:
    """Return the place nearest the head from which on the stages do not keep up; from `settled` on they do."""
    fails, holds = 0, settled
    while holds - fails > 1:
        middle = (fails + holds) // 2
        if kept(middle):
            holds = middle
        else:
            fails = middle
    return fails


def _gallop(found: list[int], place: int, kept: Callable[[int], bool]) -> None:
    """Raise the depth at `place` to the least with which the stages from there on keep up."""
    low, step = found[place], 1
    while True:
        found[place] = low + step
        if kept(place):
            break
        low, step = found[place], 2 * step
    high = found[place]
    while high - low > 1:
        found[place] = (low + high) // 2
        low, high = (low, found[place]) if kept(place) else (found[place], high)
    found[place] = high


def _spread_upstream(pipeline: Pipeline, found: list[int]) -> None:
    """Let no depth grow along an edge."""
    place = {stage.index: at for at, stage in enumerate(pipeline.stages)}
    for wire in sorted(pipeline.wires, key=lambda wire: -wire.consumer):
        producer, consumer = place[wire.producer], place[wire.consumer]
        found[producer] = max(found[producer], found[consumer])


def _bounds(pipeline: Pipeline, seconds: float) -> list[int]:
    """Return depths that no schedule of this tick can go below.

    At each stage the backward of a micro-batch starts at least `apart` after its forward. That many ticks, and the
    backward's own time, lie between a forward and the one that is `depth` later. Where forwards and backwards take turns,
    that later forward also ends before the next backward starts, so `apart` grows to fit whole ticks.
    """
    readers: dict[int, list[tuple[TimedStage, float]]] = {}
    stages = {stage.index: stage for stage in pipeline.stages}
    hops = {(channel.edge, channel.direction): hop.seconds for channel, hop in pipeline.channels.items()}
    directions: tuple[Direction, Direction] = ("forward", "backward")
    for wire in pipeline.wires:
        there_and_back = sum(hops[wire.edge, direction] for direction in directions)
        readers.setdefault(wire.producer, []).append((stages[wire.consumer], there_and_back))
    apart: dict[int, float] = {}
    found: list[int] = []
    for stage in reversed(pipeline.stages):
        forward, backward = stage.seconds.forward, stage.seconds.backward
        waited = max(
            (apart[v.index] + v.seconds.backward + hop for v, hop in readers.get(stage.index, ())), default=0.0
        )
        least = forward + waited
        occupied = backward + stage.seconds.update / stage.accumulation
        depth = 1 if stage is pipeline.head else max(1, ceil((least + occupied) / seconds - _ROUNDING))
        in_turn = not pipeline.overlaps(stage)
        apart[stage.index] = max(least, seconds * (depth - 1) + forward) if in_turn else least
        found.insert(0, depth)
    _spread_upstream(pipeline, found)
    return found


def _shared(pipeline: Pipeline, tolerance: float) -> tuple[int, ...]:
    """Try with updates spread evenly, which repeats itself sooner; with windows only where that misses something."""
    spread = tuple(
        evolve(stage, accumulation=1, seconds=evolve(stage.seconds, update=stage.seconds.update / stage.accumulation))
        for stage in pipeline.stages
    )
    found = _by_trial(evolve(pipeline, stages=spread), tolerance)
    full = max(work_seconds(pipeline).values())
    if pipeline.accumulation > 1 and tick(with_depths(pipeline, found)).seconds > full * (1 + tolerance):
        return _by_trial(pipeline, tolerance)
    return found


def _by_trial(pipeline: Pipeline, tolerance: float) -> tuple[int, ...]:
    """Deepen until nothing is gained; then lower each stage with all before it, from the head on."""
    best = inf
    full = max(work_seconds(pipeline).values())
    tried: list[tuple[float, list[int]]] = []
    distances = _distances(pipeline)
    for factor in _FACTORS:
        depths = [1 + factor * distances[stage.index] for stage in pipeline.stages]
        seconds = tick(with_depths(pipeline, depths)).seconds
        tried.append((seconds, depths))
        gained = best - seconds
        best = min(best, seconds)
        if best <= full * (1 + tolerance) or gained <= best * tolerance:
            break
    limit = max(best, full) * (1 + tolerance)
    found = next(depths for seconds, depths in tried if seconds <= limit)
    for place in reversed(range(len(found) - 1)):
        before = _upstream(pipeline, pipeline.stages[place].index)
        found = _lowered(pipeline, found, before, limit)
    return tuple(found)


def _lowered(pipeline: Pipeline, depths: list[int], which: set[int], seconds: float) -> list[int]:
    """Lower some stages' depths together as far as the tick allows; twice as far at each step that it does."""
    step = 1
    while True:
        lower = [each - step * (stage.index in which) for stage, each in zip(pipeline.stages, depths, strict=True)]
        if _descends(pipeline, lower) and tick(with_depths(pipeline, lower)).seconds <= seconds:
            depths, step = lower, 2 * step
        elif step == 1:
            return depths
        else:
            step = 1


def _distances(pipeline: Pipeline) -> Mapping[int, int]:
    found = {stage.index: 0 for stage in pipeline.stages}
    for wire in sorted(pipeline.wires, key=lambda wire: -wire.consumer):
        found[wire.producer] = max(found[wire.producer], 1 + found[wire.consumer])
    return found


def _upstream(pipeline: Pipeline, index: int) -> set[int]:
    """Return a stage and all before it."""
    found = {index}
    for wire in sorted(pipeline.wires, key=lambda wire: -wire.consumer):
        if wire.consumer in found:
            found.add(wire.producer)
    return found


def _descends(pipeline: Pipeline, depths: Sequence[int]) -> bool:
    depth = {stage.index: each for stage, each in zip(pipeline.stages, depths, strict=True)}
    return min(depths) >= 1 and all(depth[wire.producer] >= depth[wire.consumer] for wire in pipeline.wires)
