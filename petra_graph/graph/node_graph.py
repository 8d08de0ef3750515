"""The network as a graph of nodes.

A node is a block instance; an edge carries the tuple of streams that its producer returns. Nothing here knows stages
or devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import networkx as nx
from attrs import define, field, frozen

from petra_graph.errors import Path
from petra_graph.registry.contracts import BlockDeclaration
from petra_graph.registry.registry import Plugin
from petra_graph.spec.model import Kind

INPUT = "input"
"""The name under which nodes read the samples."""


@frozen(kw_only=True)
class Node:
    """One block instance, with everything resolved that needs no tensor."""

    name: str
    block: str
    """The block as the specification names it."""
    plugin: Plugin | None
    """None where only importing the block's module would tell (`block = "module:Class"` before that import)."""
    options: Any
    """An instance of the block's own options class."""
    kind: Kind
    inputs: tuple[str, ...]
    """Producers in declared order; INPUT is the samples."""
    path: Path = ()
    """Where the specification says so."""
    first_of: str | None = None
    """The name of a repeated node, on its first copy: it is taken too, since reading it means the last copy."""

    @property
    def declaration(self) -> BlockDeclaration | None:
        """What the block declares."""
        return block_declaration(self.plugin)


def block_declaration(plugin: Plugin | None) -> BlockDeclaration | None:
    """Return what a block's plugin declares, None for a block that is not resolved yet."""
    if plugin is None:
        return None
    assert isinstance(plugin.declaration, BlockDeclaration)
    return plugin.declaration


@define(kw_only=True, eq=False)
class NodeGraph:
    """A directed acyclic graph of nodes that keeps every rule of `petra_graph.graph.rules`."""

    nodes: Mapping[str, Node] = field()
    """In declared order."""

    @cached_property
    def digraph(self) -> nx.DiGraph:
        """The same as networkx sees it: names and edges."""
        graph = nx.DiGraph()
        graph.add_nodes_from(self.nodes)
        graph.add_edges_from(
            (producer, node.name) for node in self.nodes.values() for producer in node.inputs if producer != INPUT
        )
        return graph

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Names in topological order; among the free, the one declared first."""
        declared = {name: index for index, name in enumerate(self.nodes)}
        return tuple(nx.lexicographical_topological_sort(self.digraph, key=declared.__getitem__))

    @cached_property
    def consumers(self) -> Mapping[str, tuple[str, ...]]:
        """For every node, who reads it, in declared order."""
        readers: dict[str, list[str]] = {name: [] for name in self.nodes}
        for node in self.nodes.values():
            for producer in node.inputs:
                if producer != INPUT:
                    readers[producer].append(node.name)
        return {name: tuple(found) for name, found in readers.items()}

    @property
    def source(self) -> str:
        """The node that reads the samples."""
        return next(node.name for node in self.nodes.values() if INPUT in node.inputs)

    @property
    def head(self) -> str:
        """The node that ends in the loss."""
        return next(node.name for node in self.nodes.values() if node.kind == "head")
