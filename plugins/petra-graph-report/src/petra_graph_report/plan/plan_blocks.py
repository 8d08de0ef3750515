"""What the pages and traces of a plan ask of its document, beyond what its tables do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle, pairwise

from petra_graph.program.plan_document import Document
from petra_graph.program.stage_bytes import PARTS

_ROUNDING = 1e-9
"""Relative to the timeline's length: blocks that share less time do not overlap."""
PART_COLOURS: Mapping[str, str] = dict(
    zip(
        PARTS,
        ("#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#a6761d", "#cc79a7", "#f0e442"),
        strict=True,
    )
)
"""Colours of parts of memory for light and for dark ground; the colour-blind can tell them apart (Okabe and Ito's, and a brown)."""
DEVICE_COLOURS = ("#77aadd", "#ee8866", "#eedd88", "#ffaabb", "#99ddff", "#44bb99", "#bbcc33", "#dddddd")
"""Paul Tol's light set, in which black text is legible and neighbours differ for the colour-blind."""


def stage_edges(document: Document) -> list[tuple[int, int]]:
    """Return the pairs of stages of which the first sends to the second, each pair once, in the document's order."""
    stage_of = {node["name"]: node["stage"] for node in document["nodes"]}
    pairs = ((stage_of[edge["producer"]], stage_of[edge["consumer"]]) for edge in document["edges"])
    return list(dict.fromkeys(pair for pair in pairs if pair[0] != pair[1]))


def block_label(block: Document) -> str:
    """Name a block by its operation and its micro-batch: F12."""
    return f"{block['verb'][0].upper()}{block['micro_batch']}"


def overlapping(blocks: Mapping[int, Sequence[Document]]) -> bool:
    """Return whether a stage computes forward and backward at once, so that they need a row each."""
    slack = _ROUNDING * end_of(blocks)
    return any(after["start"] < before["end"] - slack for mine in blocks.values() for before, after in pairwise(mine))


def end_of(blocks: Mapping[int, Sequence[Document]]) -> float:
    return max((block["end"] for mine in blocks.values() for block in mine), default=0.0)


def device_colours(document: Document) -> dict[str, str]:
    """Return each device's colour, in the devices' order; colours repeat, so a picture always names the device as well."""
    return {device["name"]: colour for device, colour in zip(document["devices"], cycle(DEVICE_COLOURS), strict=False)}
