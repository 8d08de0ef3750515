"""Short names for many things: `layer1.0-2` for a run of copies, `1-4, 7` for stages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from petra_graph.program.plan_document import Document
from petra_graph.report.plan.units import memory, one_line

_DEPTHS = 12
_COPY = re.compile(r"(.+)\.(0|[1-9][0-9]*)", re.DOTALL)


def nodes_label(names: Iterable[str], between: str = ", ") -> str:
    """Name nodes in order, consecutive copies of a repeated node together: stem, down1, layer1.0-2."""
    runs: list[tuple[str, list[int]]] = []
    for name in names:
        copy = _COPY.fullmatch(name)
        if copy and runs and runs[-1][0] == copy[1] and runs[-1][1][-1:] == [int(copy[2]) - 1]:
            runs[-1][1].append(int(copy[2]))
        else:
            runs.append((copy[1], [int(copy[2])]) if copy else (name, []))
    return one_line(between.join(f"{base}.{ranges_label(copies)}" if copies else base for base, copies in runs))


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
    """Name a schedule, which is a word or a list of depths; of many depths, the first ones."""
    if isinstance(schedule, str):
        return schedule
    shown = ", ".join(map(str, schedule[:_DEPTHS]))
    return f"depths {shown}{', …' * (len(schedule) > _DEPTHS)}"


def stage_label(stage: Document) -> str:
    """Name a stage, its device and its depth."""
    return f"stage {stage['index']}, {stage['device']}, depth {stage['depth']}"


def edge_label(edge: Document) -> str:
    """Return the bytes that an edge carries forward for a micro-batch, and the capacity of its channel."""
    capacity = "" if edge["capacity"] is None else f", capacity {edge['capacity']}"
    return f"{memory(edge['forward_bytes'])}{capacity}"


def shapes_label(node: Document) -> str:
    """Return the shapes of a node's outputs: 64x56x56, 64x56x56."""
    return ", ".join("x".join(map(str, shape)) for shape in node["outputs"])
