"""Seconds a micro-batch takes once the pipeline is full: its tick.

Where each device hosts one stage, the tick is exact: the slowest cycle of waits. Where devices host several, what goes
first there depends on time itself; then the pipeline is simulated until it repeats itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isclose

from attrs import evolve, frozen

from petra_graph.compiler.simulator.cycle import Critical, CycleFinder, slowest_cycle
from petra_graph.compiler.simulator.deadlock import Deadlock, Wait, circle
from petra_graph.compiler.simulator.events import simulate
from petra_graph.compiler.simulator.model import Pipeline
from petra_graph.compiler.simulator.repeat import repeated
from petra_graph.compiler.simulator.waits import Precedence, needs_windows, precedence_graph
from petra_graph.program.schedule import Action

_DEEP = 1_000
"""A depth at which no stage of an unbounded pipeline waits for its own backwards."""


@frozen(kw_only=True)
class Tick:
    """Seconds a micro-batch in the steady state."""

    seconds: float
    exact: bool
    """Otherwise a mean over the middle of a long simulation that did not repeat itself."""
    stages: tuple[int, ...]
    """Those in the cycle of waits that sets it; one stage alone where its device is never idle."""


def work_seconds(pipeline: Pipeline) -> Mapping[str, float]:
    """Return for each device how long a micro-batch keeps it busy; the longer of its streams where it overlaps."""
    found: dict[str, float] = {}
    for device, stages in pipeline.hosted.items():
        forward = backward = 0.0
        for stage in stages:
            seconds = pipeline.seconds(stage)
            forward += seconds.forward
            backward += seconds.backward + seconds.update / stage.accumulation
        overlaps = pipeline.overlaps(stages[0])
        found[device] = max(forward, backward) if overlaps else forward + backward
    return found


def tick(pipeline: Pipeline) -> Tick:
    """Return the steady state of a pipeline.

    Raises:
        Deadlock: it would never reach one.
    """
    if _never_idle(pipeline):
        seconds = sum(work_seconds(pipeline).values())
        return Tick(seconds=seconds, exact=True, stages=_busiest(pipeline, seconds))
    if not pipeline.one_stage_a_device:
        found = repeated(pipeline, at_least=max(work_seconds(pipeline).values()))
        return Tick(seconds=found.seconds, exact=found.exact, stages=_busiest(pipeline, found.seconds))
    windows = needs_windows(pipeline)
    graph = precedence_graph(pipeline, windows=windows)
    least = max(work_seconds(pipeline).values())
    critical = slowest_cycle(graph, at_least=least * graph.period_micro_batches)
    if critical.seconds == inf:
        raise Deadlock(_explained(critical, pipeline))
    seconds = critical.seconds / graph.period_micro_batches
    stages = tuple(sorted({edge.before.stage for edge in critical.cycle})) or _busiest(pipeline, seconds)
    return Tick(seconds=seconds, exact=True, stages=stages)


def _never_idle(pipeline: Pipeline) -> bool:
    """Whether one device does everything, one operation at a time: some stage can always go on, as depths descend."""
    depth = {stage.index: stage.depth for stage in pipeline.stages}
    return (
        len(pipeline.hosted) == 1
        and not pipeline.overlaps(pipeline.head)
        and all(depth[wire.producer] >= depth[wire.consumer] for wire in pipeline.wires)
    )


def full_seconds(pipeline: Pipeline) -> float:
    """Return the tick of the same stages if forwards could run ahead without bound, and slots were free."""
    deep = tuple(evolve(stage, depth=_DEEP) for stage in pipeline.stages[:-1])
    unbounded = evolve(pipeline, slots={}, stages=(*deep, pipeline.head))
    if not pipeline.one_stage_a_device:
        return max(work_seconds(unbounded).values())
    windows = needs_windows(unbounded)
    graph = precedence_graph(unbounded, windows=windows)
    free = evolve(graph, edges=tuple(edge for edge in graph.edges if not _is_forward_message(edge)))
    least = max(work_seconds(unbounded).values())
    return slowest_cycle(free, at_least=least * graph.period_micro_batches).seconds / graph.period_micro_batches


def keeps(pipeline: Pipeline, seconds: float, stages: frozenset[int] | None = None) -> bool:
    """Whether the tick is no longer than `seconds`; without some stages where `stages` names the others.

    Only for pipelines with one stage a device.
    """
    windows = needs_windows(pipeline)
    graph = precedence_graph(pipeline, windows=windows, stages=stages)
    return CycleFinder(graph).slower_than(seconds * graph.period_micro_batches) is None


def _is_forward_message(edge: Precedence) -> bool:
    return edge.before.stage != edge.after.stage and edge.after.verb == "forward"


def _busiest(pipeline: Pipeline, seconds: float) -> tuple[int, ...]:
    """Return the stages of the devices that are never idle."""
    return tuple(
        stage.index
        for device, work in work_seconds(pipeline).items()
        if isclose(work, seconds, rel_tol=1e-6)
        for stage in pipeline.hosted[device]
    )


def _explained(critical: Critical, pipeline: Pipeline) -> tuple[Wait, ...]:
    """Tell a cycle that can never begin as who waits for whom."""
    told = [
        Wait(
            stage=edge.after.stage,
            action=Action(edge.after.verb, edge.after.micro_batch),
            on=edge.before.stage,
            channel=None,
        )
        for edge in critical.cycle
        if edge.before.stage != edge.after.stage
    ]
    try:  # A run of the pipeline knows wires and micro-batches.
        simulate(pipeline, 2 * max(stage.depth for stage in pipeline.stages) + 2 * pipeline.accumulation)
    except Deadlock as deadlock:
        return deadlock.waits
    return circle(told)
