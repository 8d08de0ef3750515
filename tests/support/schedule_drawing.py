"""A timeline as text."""

from __future__ import annotations

from collections.abc import Iterator

from petra_graph.compiler.timing import Timeline


def drawn(timeline: Timeline) -> str:
    """Return a row a stage, one column a second."""
    return "\n" + "".join(f"    {line}\n" for line in _lines(timeline))


def _lines(timeline: Timeline) -> Iterator[str]:
    width = max(len(str(event.action)) for event in timeline.events) + 1
    for stage in sorted({event.stage for event in timeline.events}):
        cells = ["."] * round(timeline.seconds)
        for event in timeline.events:
            first, end = round(event.start), round(event.end)
            if event.stage == stage and end > first:
                cells[first:end] = [str(event.action), *["--"] * (end - first - 1)]
        yield f"stage {stage}   " + "".join(f"{cell:<{width}}" for cell in cells).rstrip()
