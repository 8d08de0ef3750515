"""Short names for many things: `layer1.0-2` for a run of copies, `1-4, 7` for stages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from petra_graph.report.plan.document import Document
from petra_graph.report.plan.units import memory, one_line

_DEPTHS = 12


def nodes_label(names: Sequence[str], between: str = ", ") -> str:
    """Name nodes in order, consecutive copies of a repeated one together: stem, down1, layer1.0-2."""
    runs: list[tuple[str, int, int]] = []
    for name in names:
        base, copy = _copy(name)
        if copy >= 0 and runs and runs[-1][0] == base and runs[-1][2] == copy - 1:
            runs[-1] = (base, runs[-1][1], copy)
        else:
            runs.append((base, copy, copy))
    return one_line(between.join(_run(*run) for run in runs))


def ranges_label(numbers: Iterable[int]) -> str:
    """Name whole numbers, consecutive ones together: 1-4, 7."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def schedule_label(schedule: str | Sequence[int]) -> str:
    """Name a schedule, which is a word or the depths themselves."""
    if isinstance(schedule, str):
        return schedule
    shown = ", ".join(map(str, schedule[:_DEPTHS]))
    return f"depths {shown}{', …' * (len(schedule) > _DEPTHS)}"


def edge_label(edge: Document) -> str:
    """Return what an edge carries forward, and its capacity."""
    slots = "" if edge["capacity"] is None else f", capacity {edge['capacity']}"
    return f"{memory(edge['forward_bytes'])}{slots}"


def _copy(name: str) -> tuple[str, int]:
    """Split layer1.2 into layer1 and 2; a name that is no copy has -1."""
    match = re.fullmatch(r"(.+)\.(0|[1-9][0-9]*)", name, re.DOTALL)
    return (match[1], int(match[2])) if match else (name, -1)


def _run(base: str, first: int, last: int) -> str:
    if first < 0:
        return base
    return f"{base}.{first}" if first == last else f"{base}.{first}-{last}"
