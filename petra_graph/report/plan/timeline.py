"""The blocks of a timeline, and the facts about them that drawings and traces share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from petra_graph.program.plan_document import Document

_ROUNDING = 1e-9
"""Relative to the timeline's length: blocks that share less time do not overlap."""
_LETTERS = {"forward": "F", "backward": "B", "update": "U"}


def by_stage(document: Document) -> dict[int, list[Document]]:
    """Return the stages' blocks, each stage's in order of time."""
    blocks: dict[int, list[Document]] = {stage["index"]: [] for stage in document["stages"]}
    for block in document["timeline"]:
        blocks[block["stage"]].append(block)
    return {stage: sorted(mine, key=lambda block: (block["start"], block["end"])) for stage, mine in blocks.items()}


def block_label(block: Document) -> str:
    """Name a block by its operation and its micro-batch: F12."""
    return f"{_LETTERS[block['verb']]}{block['micro_batch']}"


def overlapping(blocks: Mapping[int, Sequence[Document]]) -> bool:
    """Return whether a stage computes forward and backward at once, so that they need a row each."""
    slack = _ROUNDING * end_of(blocks)
    return any(after["start"] < before["end"] - slack for mine in blocks.values() for before, after in pairwise(mine))


def end_of(blocks: Mapping[int, Sequence[Document]]) -> float:
    """Return when the last block ends."""
    return max((block["end"] for mine in blocks.values() for block in mine), default=0.0)


def full_from(blocks: Mapping[int, Sequence[Document]]) -> float:
    """Return when every stage has begun its first backward: from then on the pipeline is full."""
    firsts = [next((block["start"] for block in mine if block["verb"] == "backward"), 0.0) for mine in blocks.values()]
    return max(firsts, default=0.0)
