"""The steady state of a pipeline whose devices choose among several stages: simulated until it is periodic.

The pipeline is periodic when every operation of every stage recurs after the same number of micro-batches and the same
time. The head alone does not show this: it may proceed evenly for long while a queue before it runs empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isclose

from petra_graph.compiler.simulator.pipeline import Pipeline
from petra_graph.compiler.simulator.precedence import needs_windows
from petra_graph.compiler.simulator.simulation import simulate
from petra_graph.compiler.simulator.timeline import Timeline

_WINDOWS = 12
"""Windows of accumulation in the longest period that is looked for."""
_OPERATIONS = 60_000
"""Operations in the longest simulation that looks for a period."""
_EQUAL = 1e-9


def period(pipeline: Pipeline, at_least: float) -> tuple[float, bool]:
    """Simulate ever longer until all stages are periodic.

    Args:
        pipeline: the stages.
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
        found = _period(rows, window)
        if found is not None and found >= at_least * (1 - _EQUAL):
            return found, True
        if 4 * count * len(pipeline.stages) > _OPERATIONS:
            return max(_mean(rows[-1], window), at_least), False
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


def _period(rows: Sequence[Sequence[float]], window: int) -> float | None:
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


def _mean(starts: Sequence[float], window: int) -> float:
    whole = (len(starts) - 1) // window * window
    return (starts[whole] - starts[0]) / whole
