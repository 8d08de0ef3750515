"""A plan as a JSON document: `compiler.prediction` writes it, and other tools and all views of a plan read it.

Times are seconds, bytes integers, shares fractions. A stage is found by its `index`, from 1, which nodes, devices and the timeline name.
Seconds, FLOPs and bytes of messages are those of a micro-batch; a null says that something is not known, or has no meaning there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from petra_graph.errors import SpecError, shown

Document: TypeAlias = dict[str, Any]
"""A whole plan, or one of its objects such as a stage."""
VERSION = 1
"""Of the document's keys and their meaning; a key that is added changes none."""
_SAVE = "save one with `petra-graph plan SPEC --json`"


def read_document(text: str | bytes, source: str) -> Document:
    """Read a plan that was saved.

    Args:
        text: the JSON text.
        source: where it comes from, for messages.

    Raises:
        SpecError: it is not a plan, or is one of another version.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{source} is no JSON: {error}", _SAVE) from error
    if not isinstance(document, dict) or not document.keys() >= {"version", "stages"}:
        raise SpecError(f"{source} is not a plan", _SAVE)
    if document["version"] != VERSION:
        came = shown(document["version"])
        raise SpecError(f"{source} is a plan of version {came}, and this petra-graph reads version {VERSION}", _SAVE)
    return document


@contextmanager
def reading(source: str) -> Iterator[None]:
    """Refuse a file with a plan as damaged where what reads it finds no key, or a value of another type."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise SpecError(
            f"{source} is damaged: {type(error).__name__}: {error}", "restore it, or make it again"
        ) from error


def room(device: Document) -> int | None:
    """Return the bytes that a device may use: its limit, or else its type's memory; None where neither is known."""
    found: int | None = device["memory_bytes"] or device.get("capacity_bytes")
    return found


def excess(device: Document) -> int:
    """Return by how many bytes a device holds more than it may; 0 where it does not, or where that is not known."""
    held: int = device["bytes"]["total"]
    return max(0, held - (room(device) or held))
