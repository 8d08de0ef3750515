"""What several views of a plan ask of its document: its parts of memory, its stages, its devices, its timeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, pairwise

from attrs import frozen

from petra_graph.program.plan_document import Document
from petra_graph.program.stage_bytes import PARTS

_OTHER = "other"
_NAMES = {"graphs": "kept graphs", "working": "working set"}
_COLOURS = ("#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#a6761d", "#cc79a7", "#f0e442", "#8c8c8c")
"""Colours for light and for dark ground; the colour-blind can tell them apart (Okabe and Ito's, and a grey)."""
DEVICE_COLOURS = ("#77aadd", "#ee8866", "#eedd88", "#ffaabb", "#99ddff", "#44bb99", "#bbcc33", "#dddddd")
"""Paul Tol's light set, in which black text is legible and neighbours differ for the colour-blind."""
_ROUNDING = 1e-9
"""Relative to the timeline's length: blocks that share less time do not overlap."""


@frozen
class MemoryPart:
    """One purpose of a stage's memory, as every view names and draws it."""

    key: str
    name: str
    colour: str


MEMORY_PARTS = tuple(
    MemoryPart(key, _NAMES.get(key, key.replace("_", " ")), colour)
    for key, colour in zip((*PARTS, _OTHER), _COLOURS, strict=True)
)

RARE_PARTS = frozenset({"graphs", _OTHER})
"""Parts that are only shown where there are any."""


def bytes_by_part(counts: Mapping[str, int]) -> dict[str, int]:
    """Return bytes by part, in order; what the total has beyond the known parts counts as `other`."""
    known = {part.key: counts.get(part.key, 0) for part in MEMORY_PARTS}
    known[_OTHER] = max(0, counts["total"] - sum(known.values()) + known[_OTHER])
    return known


def parts_held(counts: Iterable[Mapping[str, int]]) -> dict[MemoryPart, list[int]]:
    """Return the bytes of several stages or devices by part; a part that none of them has is left out."""
    by_part = [bytes_by_part(count) for count in counts]
    held = {part: [parts[part.key] for parts in by_part] for part in MEMORY_PARTS}
    return {part: values for part, values in held.items() if any(values)}


def stage_edges(document: Document) -> list[tuple[int, int]]:
    """Return the pairs of stages of which the first sends to the second, each pair once, in the document's order."""
    stage_of = {node["name"]: node["stage"] for node in document["nodes"]}
    pairs = ((stage_of[edge["producer"]], stage_of[edge["consumer"]]) for edge in document["edges"])
    return list(dict.fromkeys(pair for pair in pairs if pair[0] != pair[1]))


def by_stage(document: Document) -> dict[int, list[Document]]:
    """Return the stages' blocks, each stage's in order of time."""
    blocks: dict[int, list[Document]] = {stage["index"]: [] for stage in document["stages"]}
    for block in document["timeline"]:
        blocks[block["stage"]].append(block)
    return {stage: sorted(mine, key=lambda block: (block["start"], block["end"])) for stage, mine in blocks.items()}


def block_label(block: Document) -> str:
    """Name a block by its operation and its micro-batch: F12."""
    return f"{block['verb'][0].upper()}{block['micro_batch']}"


def overlapping(blocks: Mapping[int, Sequence[Document]]) -> bool:
    """Return whether a stage computes forward and backward at once, so that they need a row each."""
    slack = _ROUNDING * end_of(blocks)
    return any(after["start"] < before["end"] - slack for mine in blocks.values() for before, after in pairwise(mine))


def end_of(blocks: Mapping[int, Sequence[Document]]) -> float:
    return max((block["end"] for mine in blocks.values() for block in mine), default=0.0)


def full_from(blocks: Mapping[int, Sequence[Document]]) -> float:
    """Return when every stage has begun its first backward: from then on the pipeline is full."""
    firsts = [next((block["start"] for block in mine if block["verb"] == "backward"), 0.0) for mine in blocks.values()]
    return max(firsts, default=0.0)


def ticks_once_full(document: Document, ticks: int) -> list[Document]:
    """Return the blocks of some ticks from when the pipeline is full."""
    start = full_from(by_stage(document))
    end = start + ticks * document["timing"]["tick_seconds"]
    return [block for block in document["timeline"] if block["end"] > start and block["start"] < end]


def device_colours(document: Document) -> dict[str, str]:
    """Return each device's colour, in the devices' order; colours repeat, so a picture always names the device as well."""
    return {device["name"]: colour for device, colour in zip(document["devices"], cycle(DEVICE_COLOURS), strict=False)}
