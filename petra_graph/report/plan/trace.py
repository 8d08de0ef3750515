"""The simulated timeline in the trace format that Perfetto and chrome://tracing open.

A device is a process, a stage one of its threads; arrows follow a micro-batch from stage to stage. The format nests blocks of one
thread that overlap; so where a device computes forward and backward at once, the backward has a thread of its own.
Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from petra_graph.program.plan_document import Document
from petra_graph.report.plan.document import stage_edges
from petra_graph.report.plan.labels import nodes_label
from petra_graph.report.plan.timeline import block_label, by_stage, overlapping

Event = dict[str, Any]

_MICROSECONDS = 1e6
_DECIMALS = 3
"""Of microseconds: viewers count in nanoseconds."""
_MOST_WITH_ARROWS = 20_000
"""Two arrows a block are more than viewers stand."""
_COLOURS = {"forward": "thread_state_running", "backward": "thread_state_iowait", "update": "thread_state_unknown"}
"""From the format's fixed palette."""


def trace(document: Document) -> str:
    """Write a plan's timeline as trace JSON."""
    return json.dumps(trace_document(document), ensure_ascii=False, separators=(",", ":"))


def trace_document(document: Document) -> dict[str, Any]:
    """Return the trace as a document: names of devices and stages, blocks, and arrows between them."""
    blocks = by_stage(document)
    apart = 1 + max(blocks) if overlapping(blocks) else 0
    few = len(document["timeline"]) <= _MOST_WITH_ARROWS
    arrows = _arrows(document, apart) if few else ()
    return {
        "traceEvents": [*_names(document, apart), *_blocks(document, apart), *arrows],
        "displayTimeUnit": "ms",
        "otherData": {
            "name": document["name"],
            "method": document["method"],
            "schedule": document["schedule"],
            "predicted": "by petra-graph plan, not measured",
            "arrows": "messages" if few else f"left out: there are more than {_MOST_WITH_ARROWS:,} blocks",
        },
    }


def _names(document: Document, apart: int) -> Iterator[Event]:
    processes = _processes(document)
    for device, pid in processes.items():
        yield _named("process_name", pid, 0, "name", device)
        yield _named("process_sort_index", pid, 0, "sort_index", pid)
    for stage in document["stages"]:
        pid = processes[stage["device"]]
        title = f"stage {stage['index']}: {nodes_label(stage['nodes'])}"
        rows = [(0, f"{title}, forward"), (apart, f"{title}, backward")] if apart else [(0, title)]
        for shift, name in rows:
            yield _named("thread_name", pid, stage["index"] + shift, "name", name)
            yield _named(
                "thread_sort_index", pid, stage["index"] + shift, "sort_index", 2 * stage["index"] + (shift > 0)
            )


def _named(what: str, pid: int, tid: int, key: str, value: str | int) -> Event:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {key: value}}


def _processes(document: Document) -> dict[str, int]:
    return {device["name"]: pid for pid, device in enumerate(document["devices"], start=1)}


def _blocks(document: Document, apart: int) -> Iterator[Event]:
    processes = _processes(document)
    for block in document["timeline"]:
        yield {
            "name": block_label(block),
            "cat": block["verb"],
            "ph": "X",
            "pid": processes[block["device"]],
            "tid": _thread(block, apart),
            "ts": _microseconds(block["start"]),
            "dur": _microseconds(block["end"] - block["start"]),
            "cname": _COLOURS[block["verb"]],
            "args": {"verb": block["verb"], "micro_batch": block["micro_batch"], "stage": block["stage"]},
        }


def _microseconds(seconds: float) -> float:
    return round(seconds * _MICROSECONDS, _DECIMALS)


def _thread(block: Document, apart: int) -> int:
    index: int = block["stage"]
    return index if block["verb"] == "forward" else index + apart


def _readers(document: Document) -> dict[tuple[str, int], list[int]]:
    """Return by verb and stage the stages that read what its block sends."""
    readers: dict[tuple[str, int], list[int]] = {}
    for producer, consumer in stage_edges(document):
        readers.setdefault(("forward", producer), []).append(consumer)
        readers.setdefault(("backward", consumer), []).append(producer)
    return readers


def _arrows(document: Document, apart: int) -> Iterator[Event]:
    """Yield an arrow for every message: from the middle of the block that sends it to the start of the one that reads it."""
    processes = _processes(document)
    blocks = {(block["verb"], block["stage"], block["micro_batch"]): block for block in document["timeline"]}
    readers = _readers(document)
    number = 0
    for (verb, stage, micro_batch), sender in blocks.items():
        for receiver in readers.get((verb, stage), ()):
            reader = blocks.get((verb, receiver, micro_batch))
            if reader is None:
                continue  # The timeline ends before it.
            number += 1
            ends = (("s", sender, (sender["start"] + sender["end"]) / 2), ("f", reader, reader["start"]))
            for phase, block, at in ends:
                event = {"name": verb, "cat": "message", "ph": phase, "id": number, "pid": processes[block["device"]]}
                event |= {"tid": _thread(block, apart), "ts": _microseconds(at)}
                yield event | ({"bp": "e"} if phase == "f" else {})
