"""The graph in words: runs of nodes that each read the node before, and the inputs of each run.

stem → left.0-2
right.0 reads stem
join reads left.2, right.0 → body.0-1
merge reads body.1, stem → head
"""

from __future__ import annotations

from collections.abc import Sequence

from petra_graph.program.plan_document import Document
from petra_graph.report.plan.labels import nodes_label
from petra_graph.report.plan.runs import runs
from petra_graph.report.plan.units import one_line

_LINES = 12


def graph_lines(nodes: Sequence[Document]) -> list[str]:
    """Return the graph's lines; of many, the first ones and how many more there are."""
    lines = [_line(run) for run in runs(nodes, lambda node, after: list(after["inputs"]) == [node["name"]])]
    return lines if len(lines) <= _LINES else [*lines[:_LINES], f"… {len(lines) - _LINES} more lines"]


def _line(run: Sequence[Document]) -> str:
    names = [node["name"] for node in run]
    if inputs := run[0]["inputs"]:
        reading = one_line(f"{names[0]} reads {', '.join(inputs)}")
        return " → ".join([reading, *filter(None, [nodes_label(names[1:], " → ")])])
    return nodes_label(names, " → ")
