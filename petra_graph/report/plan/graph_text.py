"""The graph in words: runs of nodes that read the one before, and what the others read.

stem → left.0-2
right.0 reads stem
join reads left.2, right.0 → body.0-1
merge reads body.1, stem → head
"""

from __future__ import annotations

from collections.abc import Sequence

from petra_graph.report.plan.document import Document
from petra_graph.report.plan.labels import nodes_label
from petra_graph.report.plan.units import one_line

_LINES = 12


def graph_lines(nodes: Sequence[Document]) -> list[str]:
    """Return the graph's lines; of many, the first ones and how many more there are."""
    runs: list[list[Document]] = []
    for place, node in enumerate(nodes):
        if place and list(node["inputs"]) == [nodes[place - 1]["name"]]:
            runs[-1].append(node)
        else:
            runs.append([node])
    lines = [_line(run) for run in runs]
    return lines if len(lines) <= _LINES else [*lines[:_LINES], f"… {len(lines) - _LINES} more lines"]


def _line(run: Sequence[Document]) -> str:
    first, *others = run
    if not first["inputs"]:
        return _arrows([node["name"] for node in run])
    reads = ", ".join(map(one_line, first["inputs"]))
    rest = f" → {_arrows([node['name'] for node in others])}" if others else ""
    return f"{one_line(first['name'])} reads {reads}{rest}"


def _arrows(names: Sequence[str]) -> str:
    return nodes_label(names, " → ")
