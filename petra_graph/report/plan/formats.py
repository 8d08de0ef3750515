"""The formats that other programs read: Mermaid text, Graphviz text, trace JSON.

In the graph languages, stages are boxes around their nodes, and nodes are coloured by device. Reversible nodes have
round corners, buffered nodes square corners, the head is round. An edge between stages is labelled with the bytes that a
micro-batch sends forward and with the capacity of its channel. Nodes get numbers for names, since both languages read
many characters as syntax.

The trace is the simulated timeline as Perfetto and chrome://tracing open it. A device is a process, a stage one of its
threads; arrows follow a micro-batch from stage to stage. The format nests blocks of one thread that overlap; so where a
device computes forward and backward at once, the backward has a thread of its own.
Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU

Decision: Graphviz text is written here. networkx writes it through pydot, a further dependency, which would have to
be told the same boxes, shapes and labels.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from petra_graph.errors import printable
from petra_graph.program.plan_document import Document
from petra_graph.report.plan.document import block_label, by_stage, device_colours, overlapping, stage_edges
from petra_graph.report.plan.labels import nodes_label
from petra_graph.units import count, memory, one_line

_MERMAID_SHAPES = {"reversible": ('("', '")'), "buffered": ('["', '"]'), "head": ('(["', '"])')}
_MERMAID_PLAIN = frozenset(" .,:/_-+=→")
_DOT_SHAPES = {"reversible": 'shape=box, style="rounded,filled"', "buffered": "shape=box", "head": "shape=oval"}
_DOT_DEFAULTS = """\
  rankdir=LR;
  fontname="sans-serif";
  node [style=filled, fontname="sans-serif", color="#444444"];
  edge [fontname="sans-serif", fontsize=10, color="#444444"];"""

Event = dict[str, Any]

_MICROSECONDS = 1e6
_DECIMALS = 3
"""Of microseconds: viewers count in nanoseconds."""
_MOST_WITH_ARROWS = 20_000
"""Blocks; viewers cannot draw two arrows for each of more."""
_COLOURS = {"forward": "thread_state_running", "backward": "thread_state_iowait", "update": "thread_state_unknown"}
"""From the format's fixed palette."""


def mermaid(document: Document) -> str:
    """Write a plan's graph as a Mermaid flowchart.

    Viewers draw 500 edges by default: larger graphs need `maxEdges` in their settings.
    """
    colours = device_colours(document)
    classes = {device: f"d{place}" for place, device in enumerate(colours)}
    lines = ["flowchart LR"]
    for stage, label, nodes in _stages(document):
        lines.append(f'  subgraph s{stage["index"]}["{_mermaid_escaped(label)}"]')
        for key, node in nodes:
            opening, closing = _MERMAID_SHAPES[node["kind"]]
            lines.append(f"    {key}{opening}{_mermaid_escaped(node['name'])}{closing}:::{classes[stage['device']]}")
        lines.append("  end")
    for producer, consumer, label in _edges(document):
        labelled = f'|"{_mermaid_escaped(label)}"|' if label else ""
        lines.append(f"  {producer} -->{labelled} {consumer}")
    lines += [
        f"  classDef {classes[device]} fill:{colour},stroke:#444,color:#000" for device, colour in colours.items()
    ]
    return "\n".join([*lines, ""])


def dot(document: Document) -> str:
    """Write a plan's graph for `dot -Tsvg`."""
    colours = device_colours(document)
    lines = [f"digraph {_dot_quoted(document['name'])} {{", _DOT_DEFAULTS]
    for stage, label, nodes in _stages(document):
        lines.append(f"  subgraph cluster_{stage['index']} {{")
        lines.append(f'    label={_dot_quoted(label)}; fontsize=10; style=rounded; color="#999999";')
        for key, node in nodes:
            tooltip = f"{node['kind']}, {node['block']}, {count(node['parameters'])} parameters"
            lines.append(
                f"    {key} [label={_dot_quoted(node['name'])}, {_DOT_SHAPES[node['kind']]}, "
                f"fillcolor={_dot_quoted(colours[stage['device']])}, tooltip={_dot_quoted(tooltip)}];"
            )
        lines.append("  }")
    for producer, consumer, label in _edges(document):
        lines.append(f"  {producer} -> {consumer}{f' [label={_dot_quoted(label)}]' if label else ''};")
    return "\n".join([*lines, "}", ""])


def _keys(document: Document) -> dict[str, str]:
    return {node["name"]: f"n{place}" for place, node in enumerate(document["nodes"])}


def _stages(document: Document) -> Iterator[tuple[Document, str, list[tuple[str, Document]]]]:
    """Yield each stage with its label, its nodes and their keys."""
    keys, nodes = _keys(document), {node["name"]: node for node in document["nodes"]}
    for stage in document["stages"]:
        label = f"stage {stage['index']}, {stage['device']}, depth {stage['depth']}"
        yield stage, label, [(keys[name], nodes[name]) for name in stage["nodes"]]


def _edges(document: Document) -> Iterator[tuple[str, str, str]]:
    """Yield the keys of each edge's ends, and its label, which is empty within a stage."""
    keys = _keys(document)
    for edge in document["edges"]:
        capacity = "" if edge["capacity"] is None else f", capacity {edge['capacity']}"
        label = f"{memory(edge['forward_bytes'])}{capacity}" if edge["cut"] else ""
        yield keys[edge["producer"]], keys[edge["consumer"]], label


def _mermaid_escaped(text: str) -> str:
    """Write a label within quotes: a character that is neither letter, digit nor plain becomes a character code."""
    return "".join(
        letter if letter.isalnum() or letter in _MERMAID_PLAIN else f"#{ord(letter)};" for letter in one_line(text)
    )


def _dot_quoted(text: str) -> str:
    """Write a string within quotes; a backslash would begin an escape, an ampersand a character's name."""
    escaped = one_line(text).replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def trace(document: Document) -> str:
    """Write a plan's timeline as trace JSON."""
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
