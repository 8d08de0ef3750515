"""What several views of a plan ask of its document: its parts of memory, its stages, its devices, its timeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from petra_graph.program.plan_document import Document
from petra_graph.program.stage_bytes import PARTS

_NAMES = {"graphs": "kept graphs", "working": "working set"}
PART_NAMES: Mapping[str, str] = {part: _NAMES.get(part, part.replace("_", " ")) for part in PARTS}
"""The purposes of a stage's memory, as every view names them."""


def parts_held(counts: Iterable[Mapping[str, int]]) -> dict[str, list[int]]:
    """Return the bytes of several stages or devices by part; a part that none of them has is left out."""
    counts = list(counts)
    held = {part: [count.get(part, 0) for count in counts] for part in PARTS}
    return {part: values for part, values in held.items() if any(values)}


def by_stage(document: Document) -> dict[int, list[Document]]:
    """Return the stages' blocks, each stage's in order of time."""
    blocks: dict[int, list[Document]] = {stage["index"]: [] for stage in document["stages"]}
    for block in document["timeline"]:
        blocks[block["stage"]].append(block)
    return {stage: sorted(mine, key=lambda block: (block["start"], block["end"])) for stage, mine in blocks.items()}


def full_from(blocks: Mapping[int, Sequence[Document]]) -> float:
    """Return when every stage has begun its first backward: from then on the pipeline is full."""
    firsts = [next((block["start"] for block in mine if block["verb"] == "backward"), 0.0) for mine in blocks.values()]
    return max(firsts, default=0.0)


def ticks_once_full(document: Document, ticks: int) -> list[Document]:
    """Return the blocks of some ticks from when the pipeline is full."""
    start = full_from(by_stage(document))
    end = start + ticks * document["timing"]["tick_seconds"]
    return [block for block in document["timeline"] if block["end"] > start and block["start"] < end]
