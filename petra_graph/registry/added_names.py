"""Names that other distributions add to the package `petra_graph`, by entry points of the group `petra_graph.names`."""

from __future__ import annotations

from typing import Any

from petra_graph.registry.discovery import NAMES, entries_of
from petra_graph.registry.first_party import OF_NAMES, how_to_install

MODULE_TABLE = "module_table"
"""The name of what makes the table `architecture` of a module: `pg.make_spec(module=...)` asks for it."""


def added_name(module: str, name: str) -> Any:
    """Import what a name stands for.

    Raises:
        AttributeError: no distribution has the name.
    """
    if (entry := entries_of(NAMES).get(name)) is not None:
        return entry.load()
    missing = f": {how_to_install(OF_NAMES[name])}" if name in OF_NAMES else ""
    raise AttributeError(f"module {module!r} has no attribute {name!r}{missing}")
