"""A network's name written out as nodes, by the architecture's own torch-free code."""

from __future__ import annotations

from typing import Any

from petra_graph.registry.building import load
from petra_graph.registry.contracts import DataFacts
from petra_graph.registry.registry import Plugin
from petra_graph.registry.trust import guarded
from petra_graph.spec.model import NodeSpec


def expand(plugin: Plugin, options: Any, facts: DataFacts) -> tuple[NodeSpec, ...]:
    """Write an architecture out as nodes.

    Args:
        plugin: an architecture.
        options: an instance of its options class.
        facts: what the data set's samples look like.

    Raises:
        SpecError: its options or the data do not make a network; paths count from the `options` table.
        PluginError: it cannot be loaded, or failed.
    """
    build = load(plugin)

    def make() -> tuple[NodeSpec, ...]:
        made = tuple(build(options, facts))
        if not made or not all(isinstance(node, NodeSpec) for node in made):
            raise TypeError("an architecture must return NodeSpec values")
        return made

    return guarded(make, f"{plugin} cannot be written out as nodes")
