"""The simulated timeline of a plan as trace JSON, which https://ui.perfetto.dev opens.

A device is a process, a stage one of its threads.
Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from petra_graph.program.plan_document import Document
from petra_graph.report.plan_tables import nodes_label

Event = dict[str, Any]


def trace(document: Document) -> str:
    """Write a plan's timeline as trace JSON."""
    blocks = document["timeline"]
    processes = {device["name"]: number for number, device in enumerate(document["devices"], start=1)}
    events = [*_names(document, processes), *(_block(block, processes) for block in blocks)]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":"))


def _names(document: Document, processes: Mapping[str, int]) -> Iterator[Event]:
    """Yield the names of devices and stages, and the numbers that viewers sort them by."""
    named = [("process", number, number, name) for name, number in processes.items()]
    for stage in document["stages"]:
        title = f"stage {stage['index']}: {nodes_label(stage['nodes'])}"
        named.append(("thread", processes[stage["device"]], stage["index"], title))
    for kind, process, thread, name in named:
        common = {"ph": "M", "pid": process, "tid": thread}
        yield {"name": f"{kind}_name", **common, "args": {"name": name}}
        yield {"name": f"{kind}_sort_index", **common, "args": {"sort_index": thread}}


def _block(block: Document, processes: Mapping[str, int]) -> Event:
    verb = block["verb"]
    return {
        "name": f"{verb[0].upper()}{block['micro_batch']}",
        "cat": verb,
        "ph": "X",
        "pid": processes[block["device"]],
        "tid": block["stage"],
        "ts": _microseconds(block["start"]),
        "dur": _microseconds(block["end"] - block["start"]),
        "args": {"verb": verb, "micro_batch": block["micro_batch"], "stage": block["stage"]},
    }


def _microseconds(seconds: float) -> float:
    """Return microseconds with three decimals: viewers count in nanoseconds."""
    return round(seconds * 1e6, 3)
