"""The tick: seconds of a micro-batch once the pipeline is full.

Where each device hosts one stage, the tick is exact: the slowest cycle of precedences. Where devices host several, the
durations decide which stage goes first there; then the pipeline is simulated until it is periodic: until every operation
of every stage recurs after the same number of micro-batches and the same time. The head alone does not show this: it may
proceed evenly for long while a queue before it runs empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf, isclose

from attrs import evolve, frozen

from petra_graph.compiler.simulator.critical_cycle import CycleFinder, slowest_cycle
from petra_graph.compiler.simulator.outcome import Timeline
from petra_graph.compiler.simulator.pipeline import Pipeline
from petra_graph.compiler.simulator.precedence import Precedence, needs_windows, precedence_graph
from petra_graph.compiler.simulator.simulation import simulate

SAME_SPEED = 0.01
"""Relative difference of speeds that count as equal."""
_DEEP = 1_000
"""A depth at which no stage of an unbounded pipeline waits for its own backwards."""
_WINDOWS = 12
"""Windows of accumulation in the longest period that is looked for."""
_OPERATIONS = 60_000
"""Operations in the longest simulation that looks for a period."""
_EQUAL = 1e-9


@frozen(kw_only=True)
class Tick:
    """Seconds a micro-batch in the steady state."""

    seconds: float
    exact: bool
    """False for a mean over the middle of a long simulation that was not periodic."""
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
    """Simulate ever longer until all stages are periodic.

    Args:
        at_least: seconds of a micro-batch that no steady state can go below.

    Returns:
        The seconds of a micro-batch, and whether they are exact; otherwise no period was found, and they are a mean over
        the middle of the longest simulation.

    Raises:
        Deadlock: some stage would wait for ever.
    """
    window = pipeline.accumulation if needs_windows(pipeline) else 1
    count = 4 * (max(stage.depth for stage in pipeline.stages) + 4 * window)
    while True:
        rows = list(_starts_while_full(simulate(pipeline, count)))
        found = _recurrence(rows, window)
        if found is not None and found >= at_least * (1 - _EQUAL):
            return found, True
        if 4 * count * len(pipeline.stages) > _OPERATIONS:
            whole = (len(rows[-1]) - 1) // window * window
            return max((rows[-1][whole] - rows[-1][0]) / whole, at_least), False
        count *= 2


def _starts_while_full(timeline: Timeline) -> Iterator[Sequence[float]]:
    """Yield each stage's starts of forwards and of backwards while the pipeline is full; the head's forwards last.

    The pipeline counts as full from a third of the source's working time on, until the source's last forward, where
    draining begins.
    """
    rows: dict[tuple[bool, int, str], list[float]] = {}
    first = min(event.stage for event in timeline.events)
    end = max(event.start for event in timeline.of(first, "forward"))
    for event in timeline.events:
        if event.verb != "update" and end / 3 <= event.start <= end:
            key = (event.stage == timeline.head and event.verb == "forward", event.stage, event.verb)
            rows.setdefault(key, []).append(event.start)
    yield from (rows[key] for key in sorted(rows))


def _recurrence(rows: Sequence[Sequence[float]], window: int) -> float | None:
    """Return the seconds of a micro-batch, if all rows recur after the same few windows and the same time."""
    for length in range(window, _WINDOWS * window + 1, window):
        if any(len(row) <= 2 * length for row in rows):
            return None
        step = rows[0][length] - rows[0][0]
        if all(
            isclose(row[at] - row[at - length], step, rel_tol=_EQUAL) for row in rows for at in range(length, len(row))
        ):
            return step / length
    return None
