"""Short texts for many things: `layer1.0-2` for a run of copies, `1-4, 7` for stages, the graph in a few lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from petra_graph.program.plan_document import Document
from petra_graph.program.schedule import schedule_text
from petra_graph.units import left_out, one_line

T = TypeVar("T")

_DEPTHS = _LINES = 12
"""The most depths of a schedule, and lines of a graph: longer ones are cut."""
_COPY = re.compile(r"(.+)\.(0|[1-9][0-9]*)", re.DOTALL)


def runs(items: Iterable[T], joins: Callable[[T, T], bool]) -> list[list[T]]:
    """Split items into runs; `joins` tells of two neighbours whether the second continues the run of the first."""
    found: list[list[T]] = []
    for item in items:
        if found and joins(found[-1][-1], item):
            found[-1].append(item)
        else:
            found.append([item])
    return found


def nodes_label(names: Iterable[str], between: str = ", ") -> str:
    """Name nodes in order, consecutive copies of a repeated node together: stem, down1, layer1.0-2."""
    shown = [
        run[0] if len(run) == 1 else f"{run[0]}-{run[-1].rpartition('.')[2]}" for run in runs(names, _is_next_copy)
    ]
    return one_line(between.join(shown))


def _is_next_copy(name: str, after: str) -> bool:
    one, other = _COPY.fullmatch(name), _COPY.fullmatch(after)
    return one is not None and other is not None and (one[1], int(one[2]) + 1) == (other[1], int(other[2]))


def ranges_label(numbers: Iterable[int]) -> str:
    """Name whole numbers, consecutive ones together: 1-4, 7."""
    found = runs(sorted(numbers), lambda number, after: after == number + 1)
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in found)


def schedule_label(schedule: str | Sequence[int]) -> str:
    """Name a schedule, which is a word or a list of depths; of many depths, the first ones."""
    if isinstance(schedule, str):
        return schedule
    return schedule_text(tuple(schedule[:_DEPTHS])) + ", …" * (len(schedule) > _DEPTHS)


def graph_lines(nodes: Sequence[Document]) -> list[str]:
    """Return the graph in words, a run of nodes that each read the node before to a line; of many lines, the first ones.

    stem → left.0-2
    right.0 reads stem
    join reads left.2, right.0 → body.0-1
    """
    lines = []
    for run in runs(nodes, lambda node, after: list(after["inputs"]) == [node["name"]]):
        names = [node["name"] for node in run]
        if inputs := run[0]["inputs"]:
            reading = one_line(f"{names[0]} reads {', '.join(inputs)}")
            lines.append(" → ".join(filter(None, [reading, nodes_label(names[1:], " → ")])))
        else:
            lines.append(nodes_label(names, " → "))
    return lines if len(lines) <= _LINES else [*lines[:_LINES], left_out(len(lines) - _LINES, "lines")]
