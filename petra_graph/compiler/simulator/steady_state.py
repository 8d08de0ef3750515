"""The speed of a pipeline: its tick, the seconds of a micro-batch once it is full, and what a plan shows beside it.

    an epoch of n micro-batches = overhead + n * tick

Where each device hosts one stage, the tick is exact: the slowest cycle of precedences. Where devices host several, the
durations decide which stage goes first there; then the pipeline is simulated until its whole state recurs: what runs, what
comes next and what is under way. The head alone does not show this: it may proceed evenly for long while a queue before it
runs empty.

The overhead is the cost of filling and draining. It is read from a simulation long enough to be steady in its middle; for
pipelines too large for that, it is the time in which one micro-batch goes forward to the head and back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Mapping
from math import isclose

from attrs import evolve, frozen

from petra_graph.compiler.simulator.critical_cycle import (
    CycleFinder,
    Precedence,
    needs_windows,
    precedence_graph,
    slowest_cycle,
)
from petra_graph.compiler.simulator.pipeline import Pipeline, TimedStage
from petra_graph.compiler.simulator.simulation import Simulation, simulate
from petra_graph.plugins.stage_facts import steady_staleness

SAME_SPEED = 0.01
"""Relative difference of speeds that count as equal."""
_DEEP = 1_000
"""A depth at which no stage of an unbounded pipeline waits for its own backwards."""
_OPERATIONS = 60_000
"""Operations in the longest simulation that looks for a period."""
_OF_OVERHEAD = 150_000
"""Operations in the longest simulation for the overhead."""


@frozen(kw_only=True)
class Tick:
    """Seconds a micro-batch in the steady state."""

    seconds: float
    exact: bool
    """False for a mean over most of a long simulation in which no state recurred."""
    stages: tuple[int, ...]
    """The stages in the cycle of precedences that sets the tick; one stage where its device is never idle."""


def work_seconds(pipeline: Pipeline) -> Mapping[str, float]:
    """Return each device's seconds of work for a micro-batch."""
    found: dict[str, float] = {}
    for device, stages in pipeline.hosted.items():
        forward = backward = 0.0
        for stage in stages:
            forward += stage.seconds.forward
            backward += stage.seconds.backward + stage.seconds.update / stage.accumulation
        found[device] = forward + backward
    return found


def tick(pipeline: Pipeline) -> Tick:
    """Return the steady state of a pipeline, whose depths grow along no edge."""
    work = work_seconds(pipeline)
    if len(pipeline.hosted) == 1:  # Some stage always has its messages.
        seconds = sum(work.values())
        return Tick(seconds=seconds, exact=True, stages=_busiest(pipeline, seconds))
    if not pipeline.one_stage_a_device:
        seconds, exact = _simulated_period(pipeline, at_least=max(work.values()))
        return Tick(seconds=seconds, exact=exact, stages=_busiest(pipeline, seconds))
    graph = precedence_graph(pipeline)
    critical = slowest_cycle(graph, at_least=max(work.values()) * graph.period_micro_batches)
    seconds = critical.seconds / graph.period_micro_batches
    stages = tuple(sorted({edge.before.stage for edge in critical.cycle})) or _busiest(pipeline, seconds)
    return Tick(seconds=seconds, exact=True, stages=stages)


def unbounded_tick(pipeline: Pipeline) -> float:
    """Return the tick of the same stages if forwards could run ahead without bound."""
    deep = tuple(evolve(stage, depth=_DEEP) for stage in pipeline.stages[:-1])
    unbounded = evolve(pipeline, stages=(*deep, pipeline.head))
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


@frozen(kw_only=True)
class Timing:
    """The speed of a pipeline."""

    tick_seconds: float
    """A micro-batch, in the steady state; fills and drains of flushed windows are in it."""
    exact: bool
    """The tick is a cycle of precedences or a period of the simulation, not a mean over it."""
    limited_by: tuple[int, ...]
    """Stages whose waits for one another, or whose device alone, set the tick."""
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

    @property
    def bubble_fraction(self) -> float:
        """The share of all devices' time in which nothing is computed, in the steady state."""
        return max(0.0, 1 - _mean(self.utilisation))

    @property
    def exchange_fraction(self) -> float:
        """The share of all devices' time in which they wait for the all-reduce of replicas."""
        return _mean(self.exchange)

    def samples_per_second(self, batch: int, replicas: int = 1) -> float:
        """Return the throughput of the steady state; `batch` is the samples in a micro-batch of one replica."""
        return batch * replicas / self.tick_seconds if self.tick_seconds else 0.0


def timing(pipeline: Pipeline) -> Timing:
    """Return the speed of a pipeline."""
    steady = tick(pipeline)
    windows = 2 + 2 * max(stage.depth for stage in pipeline.stages) // pipeline.accumulation
    count = windows * pipeline.accumulation
    small = 2 * count * len(pipeline.stages) <= _OF_OVERHEAD
    timeline = simulate(pipeline, count if small else 1)
    fill, drain = timeline.fill_seconds, timeline.drain_seconds
    return Timing(
        tick_seconds=steady.seconds,
        exact=steady.exact,
        limited_by=steady.stages,
        utilisation=_shares(pipeline, steady.seconds, lambda stage: stage.seconds.per_micro_batch(stage.accumulation)),
        exchange=_shares(pipeline, steady.seconds, lambda stage: stage.seconds.exchange / stage.accumulation),
        fill_seconds=fill,
        drain_seconds=drain,
        overhead_seconds=timeline.seconds - count * steady.seconds if small else fill + drain,
    )


def staleness(stage: TimedStage) -> float:
    """Return the mean number of updates between a micro-batch's forward and its backward, once the pipeline is full."""
    return steady_staleness(stage.depth, stage.accumulation, stage.flush)


def _shares(pipeline: Pipeline, tick_seconds: float, of: Callable[[TimedStage], float]) -> Mapping[str, float]:
    """Return the share that the seconds of a device's stages have in its tick."""
    return {
        device: sum(map(of, stages)) / tick_seconds if tick_seconds else 0.0
        for device, stages in pipeline.hosted.items()
    }


def _mean(shares: Mapping[str, float]) -> float:
    return sum(shares.values()) / len(shares)
