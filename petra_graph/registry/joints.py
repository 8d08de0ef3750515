"""Attributes of the package `petra_graph` that other distributions add, by entry points of the group `petra_graph.names`."""

from __future__ import annotations

from typing import Any

from petra_graph.registry.discovery import NAMES, entries_of


def added_name(module: str, name: str) -> Any:
    """Import what a name of the package stands for.

    Raises:
        AttributeError: no distribution has the name.
    """
    if (entry := entries_of(NAMES).get(name)) is not None:
        return entry.load()
    raise AttributeError(f"module {module!r} has no attribute {name!r}")
