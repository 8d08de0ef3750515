"""A timeline as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from petra_graph.compiler.simulator.outcome import Event, Timeline


def drawn(timeline: Timeline) -> str:
    """Return a row a stage, one column a second; two rows where forwards and backwards overlap."""
    return "\n" + "".join(f"    {line}\n" for line in _lines(timeline))


def _lines(timeline: Timeline) -> Iterator[str]:
    width = max(len(str(event.action)) for event in timeline.events) + 1
    for stage in sorted({event.stage for event in timeline.events}):
        title = f"stage {stage}"
        for row in _rows([event for event in timeline.events if event.stage == stage]):
            cells = ["."] * round(timeline.seconds)
            for event in row:
                first, end = round(event.start), round(event.end)
                cells[first:end] = [str(event.action), *["--"] * (end - first - 1)] if end > first else []
            yield f"{title}   " + "".join(f"{cell:<{width}}" for cell in cells).rstrip()
            title = " " * len(title)


def _rows(events: Sequence[Event]) -> tuple[Sequence[Event], ...]:
    """Return a stage's operations; forwards apart from the others, where some run at the same time."""
    if all(before.end <= after.start for before, after in pairwise(events)):
        return (events,)
    forwards = [event for event in events if event.verb == "forward"]
    return forwards, [event for event in events if event.verb != "forward"]
