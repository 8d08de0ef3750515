"""A plugin's own options from its table, checked by the plugin's own class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from petra_graph.errors import Path, Problem
from petra_graph.registry.registry import Plugin
from petra_graph.spec.structure import structure_as


def read_options(plugin: Plugin, mapping: Mapping[str, Any], path: Path) -> tuple[Any | None, tuple[Problem, ...]]:
    """Read a plugin's `options` table.

    Args:
        plugin: whose options they are.
        mapping: the table.
        path: where the table stands in the specification.

    Returns:
        an instance of the declaration's options class, or None and what is wrong.
    """
    names = {path: f"the options of {plugin}"}
    return structure_as(plugin.declaration.options, mapping, path, names=names)
