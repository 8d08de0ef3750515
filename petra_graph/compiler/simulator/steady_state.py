"""The tick: seconds of a micro-batch once the pipeline is full.

Where each device hosts one stage, the tick is exact: the slowest cycle of precedences. Where devices host several, the
durations decide which stage goes first there; then the pipeline is simulated until its whole state recurs: what runs, what
comes next and what is under way. The head alone does not show this: it may proceed evenly for long while a queue before it
runs empty.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping
from math import inf, isclose

from attrs import evolve, frozen

from petra_graph.compiler.simulator.critical_cycle import CycleFinder, slowest_cycle
from petra_graph.compiler.simulator.pipeline import Pipeline
from petra_graph.compiler.simulator.precedence import Precedence, needs_windows, precedence_graph
from petra_graph.compiler.simulator.simulation import Simulation, simulate

SAME_SPEED = 0.01
"""Relative difference of speeds that count as equal."""
_DEEP = 1_000
"""A depth at which no stage of an unbounded pipeline waits for its own backwards."""
_OPERATIONS = 60_000
"""Operations in the longest simulation that looks for a period."""


@frozen(kw_only=True)
class Tick:
    """Seconds a micro-batch in the steady state."""

    seconds: float
    exact: bool
    """False for a mean over most of a long simulation in which no state recurred."""
    stages: tuple[int, ...]
    """The stages in the cycle of precedences that sets the tick; one stage where its device is never idle."""


def work_seconds(pipeline: Pipeline) -> Mapping[str, float]:
    """Return each device's seconds of work for a micro-batch; of the longer stream where forwards overlap backwards."""
    found: dict[str, float] = {}
    for device, stages in pipeline.hosted.items():
        forward = backward = 0.0
        for stage in stages:
            forward += stage.seconds.forward
            backward += stage.seconds.backward + stage.seconds.update / stage.accumulation
        found[device] = max(forward, backward) if pipeline.overlap else forward + backward
    return found


def tick(pipeline: Pipeline) -> Tick:
    """Return the steady state of a pipeline.

    Raises:
        Deadlock: the pipeline never reaches a steady state.
    """
    work = work_seconds(pipeline)
    # One device does everything, one operation at a time: some stage always has its messages, as depths descend.
    if len(pipeline.hosted) == 1 and not pipeline.overlap and pipeline.may_run:
        seconds = sum(work.values())
        return Tick(seconds=seconds, exact=True, stages=_busiest(pipeline, seconds))
    if not pipeline.one_stage_a_device:
        seconds, exact = _simulated_period(pipeline, at_least=max(work.values()))
        return Tick(seconds=seconds, exact=exact, stages=_busiest(pipeline, seconds))
    graph = precedence_graph(pipeline)
    critical = slowest_cycle(graph, at_least=max(work.values()) * graph.period_micro_batches)
    if critical.seconds == inf:
        # The simulation says which channels and micro-batches are missing.
        simulate(pipeline, 2 * max(stage.depth for stage in pipeline.stages) + 2 * pipeline.accumulation)
        raise AssertionError("a cycle can never begin, and the simulation does not deadlock")
    seconds = critical.seconds / graph.period_micro_batches
    stages = tuple(sorted({edge.before.stage for edge in critical.cycle})) or _busiest(pipeline, seconds)
    return Tick(seconds=seconds, exact=True, stages=stages)


def unbounded_tick(pipeline: Pipeline) -> float:
    """Return the tick of the same stages if forwards could run ahead without bound, and channels had no capacity."""
    deep = tuple(evolve(stage, depth=_DEEP) for stage in pipeline.stages[:-1])
    unbounded = evolve(pipeline.with_capacity({}), stages=(*deep, pipeline.head))
    least = max(work_seconds(unbounded).values())
    if not pipeline.one_stage_a_device:
        return least
    graph = precedence_graph(unbounded)
    free = evolve(graph, edges=tuple(edge for edge in graph.edges if not _is_forward_message(edge)))
    return slowest_cycle(free, at_least=least * graph.period_micro_batches).seconds / graph.period_micro_batches


def keeps_up(pipeline: Pipeline, seconds: float, stages: frozenset[int] | None = None) -> bool:
    """Whether the tick is at most `seconds`; of the subset `stages` where given, as if the others never delayed it.

    Only for pipelines with one stage a device.
    """
    graph = precedence_graph(pipeline, stages)
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


def _simulated_period(pipeline: Pipeline, at_least: float) -> tuple[float, bool]:
    """Simulate until a state recurs.

    Args:
        at_least: seconds of a micro-batch that no steady state can go below.

    Returns:
        The seconds of a micro-batch, and whether they are exact; otherwise no state recurred, and they are a mean over
        the last two thirds of the simulation.

    Raises:
        Deadlock: some stage would wait for ever.
    """
    simulation = Simulation(pipeline, sys.maxsize)
    source = pipeline.stages[0]
    seen: dict[Hashable, int] = {}
    starts: list[int] = []
    operations, window = 0, pipeline.accumulation if needs_windows(pipeline) else 1
    most = max(_OPERATIONS, 8 * window * len(pipeline.stages))  # four windows at least
    for started in simulation.steps():
        operations += len(started)
        for stage, action, start, _ in started:
            if stage is source and action.verb == "forward":
                starts.append(start)
                now = action.micro_batch
                before = seen.setdefault(simulation.state(now), now)
                if before < now:
                    return max(simulation.seconds((start - starts[before]) / (now - before)), at_least), True
        if operations > most:
            break
    whole = (len(starts) * 2 // 3 - 1) // window * window
    return max(simulation.seconds((starts[-1] - starts[-1 - whole]) / whole), at_least), False
