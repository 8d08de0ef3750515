"""The plan's document, and the names for what it holds.

Bytes are integers and times are seconds. A stage is found by its `index`, which nodes, devices and the timeline name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias, cast

from attrs import frozen

from petra_graph.errors import Problem, SpecError

Document: TypeAlias = Mapping[str, Any]

_KEYS = frozenset({
    "name", "method", "schedule", "accumulation", "micro_batch", "stages", "totals", "paper_accounting", "timing",
    "devices", "nodes", "edges", "timeline", "assumptions", "warnings",
})  # fmt: skip


@frozen(kw_only=True)
class Part:
    """What bytes are for."""

    key: str
    name: str
    colour: str
    """On light and on dark ground alike; told apart by the colour-blind (Okabe and Ito's, and a grey)."""


PARTS = (
    Part(key="parameters", name="parameters", colour="#0072b2"),
    Part(key="gradients", name="gradients", colour="#56b4e9"),
    Part(key="optimizer", name="optimizer", colour="#009e73"),
    Part(key="input_buffer", name="input buffer", colour="#e69f00"),
    Part(key="parameter_buffer", name="parameter buffer", colour="#d55e00"),
    Part(key="graphs", name="kept graphs", colour="#a6761d"),
    Part(key="working", name="working set", colour="#cc79a7"),
    Part(key="channels", name="channels", colour="#f0e442"),
    Part(key="other", name="other", colour="#8c8c8c"),
)

RARE = frozenset({"graphs", "other"})
"""Parts that are only shown where there are any."""


def read_document(text: str, source: str) -> Document:
    """Read a plan that was saved.

    Args:
        text: the JSON text.
        source: where it comes from, for messages.

    Raises:
        SpecError: it is no plan.
    """
    hint = "save one with `petra-graph plan SPEC --format json`"
    try:
        document = json.loads(text)
    except ValueError as error:
        raise SpecError(f"{source} is no JSON: {error}", hint) from error
    if not isinstance(document, dict):
        raise SpecError(f"{source} is no plan: it holds a {type(document).__name__}", hint)
    if missing := sorted(_KEYS - document.keys()):
        raise SpecError(Problem(message=f"{source} is no plan: it has no {', '.join(missing)}", hint=hint))
    return cast(Document, document)


def parts_of(counts: Mapping[str, int]) -> dict[str, int]:
    """Return bytes by part, in order; what the total has beyond the known ones is `other`."""
    known = {part.key: counts.get(part.key, 0) for part in PARTS}
    known["other"] = max(0, counts["total"] - sum(known.values()) + known["other"])
    return known


def stages_by_index(document: Document) -> dict[int, Document]:
    """Return the stages by the index that nodes, devices and the timeline name."""
    return {stage["index"]: stage for stage in document["stages"]}


def stage_edges(document: Document) -> list[tuple[int, int]]:
    """Return which stage sends to which, each pair once, in the document's order."""
    home = {node["name"]: node["stage"] for node in document["nodes"]}
    pairs = ((home[edge["producer"]], home[edge["consumer"]]) for edge in document["edges"])
    return list(dict.fromkeys(pair for pair in pairs if pair[0] != pair[1]))
