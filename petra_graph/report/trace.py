"""The simulated timeline of a plan as trace JSON, which https://ui.perfetto.dev opens.

A device is a process, a stage one of its threads; arrows follow a micro-batch from stage to stage.
Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from petra_graph.program.plan_document import Document
from petra_graph.report.plan_tables import nodes_label

Event = dict[str, Any]

_MOST_WITH_ARROWS = 20_000
"""The most blocks with arrows; viewers cannot draw two arrows for each of more."""


def trace(document: Document) -> str:
    """Write a plan's timeline as trace JSON."""
    blocks = document["timeline"]
    processes = {device["name"]: number for number, device in enumerate(document["devices"], start=1)}
    arrows = _arrows(document, processes) if len(blocks) <= _MOST_WITH_ARROWS else ()
    events = [*_names(document, processes), *(_block(block, processes) for block in blocks), *arrows]
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


def _arrows(document: Document, processes: Mapping[str, int]) -> Iterator[Event]:
    """Yield an arrow for every message: from the middle of the sender's block to the start of the receiver's block."""
    stage_of = {node["name"]: node["stage"] for node in document["nodes"]}
    receivers: defaultdict[tuple[str, int], dict[int, None]] = defaultdict(dict)
    for edge in document["edges"]:
        producer, consumer = stage_of[edge["producer"]], stage_of[edge["consumer"]]
        if producer != consumer:
            receivers["forward", producer][consumer] = None
            receivers["backward", consumer][producer] = None
    blocks = {(block["verb"], block["stage"], block["micro_batch"]): block for block in document["timeline"]}
    number = 0
    for (verb, stage, micro_batch), sent in blocks.items():
        for receiver in receivers[verb, stage]:
            read = blocks.get((verb, receiver, micro_batch))
            if read is None:
                continue  # the timeline ends before it
            number += 1
            middle = (sent["start"] + sent["end"]) / 2
            for phase, block, at in (("s", sent, middle), ("f", read, read["start"])):
                event = {"name": verb, "cat": "message", "ph": phase, "id": number, "pid": processes[block["device"]]}
                yield event | {"tid": block["stage"], "ts": _microseconds(at)} | ({"bp": "e"} if phase == "f" else {})
