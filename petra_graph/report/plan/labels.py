"""Short names for many things: `layer1.0-2` for a run of copies, `1-4, 7` for stages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from petra_graph.program.plan_document import Document
from petra_graph.program.schedule import schedule_text
from petra_graph.report.plan.runs import runs
from petra_graph.report.plan.units import memory, one_line

_DEPTHS = 12
_COPY = re.compile(r"(.+)\.(0|[1-9][0-9]*)", re.DOTALL)


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
