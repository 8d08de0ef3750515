"""The timeline of a plan's document: its blocks by stage, and when the pipeline is full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from petra_graph.program.plan_document import Document


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
