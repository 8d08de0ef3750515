"""The simulated timeline as trace JSON, which Perfetto and chrome://tracing open.

A device is a process, a stage one of its threads; arrows follow a micro-batch from stage to stage. The format nests blocks of
one thread that overlap; so where a device computes forward and backward at once, the backward has a thread of its own.
Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from petra_graph.errors import SpecError, printable
from petra_graph.program.plan_document import Document
from petra_graph.report.plan.plan_timeline import by_stage
from petra_graph.report.plan.short_labels import nodes_label
from petra_graph_report.plan.plan_blocks import block_label, overlapping, stage_edges

Event = dict[str, Any]

_MICROSECONDS = 1e6
_DECIMALS = 3
"""The decimals of microseconds: viewers count in nanoseconds."""
_MOST_WITH_ARROWS = 20_000
"""The most blocks with arrows; viewers cannot draw two arrows for each of more."""
_COLOURS = {"forward": "thread_state_running", "backward": "thread_state_iowait", "update": "thread_state_unknown"}
"""Colours from the format's fixed palette."""


def trace(document: Document) -> str:
    """Write a plan's timeline as trace JSON.

    Raises:
        SpecError: the document is a table of plans.
    """
    if "stages" not in document:
        raise SpecError("a trace is of one plan, not of a table of plans", "use --format html, json or text")
    text = json.dumps(trace_document(document), ensure_ascii=False, separators=(",", ":"))
    return text if printable(text) == text else json.dumps(trace_document(document), separators=(",", ":"))


def trace_document(document: Document) -> dict[str, Any]:
    """Return the trace as a document: names of devices and stages, blocks, and arrows between them."""
    blocks = by_stage(document)
    processes = {device["name"]: pid for pid, device in enumerate(document["devices"], start=1)}
    backward_shift = 1 + max(blocks) if overlapping(blocks) else 0
    few = len(document["timeline"]) <= _MOST_WITH_ARROWS
    drawn = [_block(block, processes, backward_shift) for block in document["timeline"]]
    return {
        "traceEvents": [
            *_names(document, processes, backward_shift),
            *drawn,
            *(_arrows(document, drawn) if few else ()),
        ],
        "displayTimeUnit": "ms",
        "otherData": {
            "name": document["name"],
            "method": document["method"],
            "schedule": document["schedule"],
            "predicted": "by petra-graph plan, not measured",
            "arrows": "messages" if few else f"left out: there are more than {_MOST_WITH_ARROWS:,} blocks",
        },
    }


def _names(document: Document, processes: dict[str, int], backward_shift: int) -> Iterator[Event]:
    """Yield the names of devices and stages, and the numbers that viewers sort them by."""

    def named(kind: str, pid: int, tid: int, name: str, order: int) -> Iterator[Event]:
        common = {"ph": "M", "pid": pid, "tid": tid}
        yield {"name": f"{kind}_name", **common, "args": {"name": name}}
        yield {"name": f"{kind}_sort_index", **common, "args": {"sort_index": order}}

    for device, pid in processes.items():
        yield from named("process", pid, 0, device, pid)
    for stage in document["stages"]:
        pid, index = processes[stage["device"]], stage["index"]
        title = f"stage {index}: {nodes_label(stage['nodes'])}"
        yield from named("thread", pid, index, f"{title}, forward" if backward_shift else title, 2 * index)
        if backward_shift:
            yield from named("thread", pid, index + backward_shift, f"{title}, backward", 2 * index + 1)


def _block(block: Document, processes: dict[str, int], backward_shift: int) -> Event:
    verb, index = block["verb"], block["stage"]
    return {
        "name": block_label(block),
        "cat": verb,
        "ph": "X",
        "pid": processes[block["device"]],
        "tid": index if verb == "forward" else index + backward_shift,
        "ts": _microseconds(block["start"]),
        "dur": _microseconds(block["end"] - block["start"]),
        "cname": _COLOURS[verb],
        "args": {"verb": verb, "micro_batch": block["micro_batch"], "stage": index},
    }


def _microseconds(seconds: float) -> float:
    return round(seconds * _MICROSECONDS, _DECIMALS)


def _arrows(document: Document, drawn: list[Event]) -> Iterator[Event]:
    """Yield an arrow for every message: from the middle of the sender's block to the start of the receiver's block."""
    receivers: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for producer, consumer in stage_edges(document):
        receivers["forward", producer].append(consumer)
        receivers["backward", consumer].append(producer)
    blocks = {
        (block["verb"], block["stage"], block["micro_batch"]): (block, event)
        for block, event in zip(document["timeline"], drawn, strict=True)
    }
    number = 0
    for (verb, stage, micro_batch), (sent, sender) in blocks.items():
        for receiver in receivers[verb, stage]:
            if (verb, receiver, micro_batch) not in blocks:
                continue  # The timeline ends before it.
            _, reader = blocks[verb, receiver, micro_batch]
            number += 1
            middle = _microseconds((sent["start"] + sent["end"]) / 2)
            for phase, block, at in (("s", sender, middle), ("f", reader, reader["ts"])):
                event = {"name": verb, "cat": "message", "ph": phase, "id": number, "pid": block["pid"]}
                yield event | {"tid": block["tid"], "ts": at} | ({"bp": "e"} if phase == "f" else {})
