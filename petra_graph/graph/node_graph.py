"""The network as a graph of nodes.

A node is a block instance; an edge carries the tuple of streams that its producer returns. Stages and devices are laid
over this graph later (`stage_graph`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import networkx as nx
from attrs import define, frozen

from petra_graph.errors import Path
from petra_graph.registry.contracts import BlockDeclaration
from petra_graph.registry.registry import Plugin
from petra_graph.spec.model import Kind

INPUT = "input"
"""The name under which nodes read the samples."""


@frozen(kw_only=True)
class Node:
    """One block instance, resolved as far as no tensor is needed."""

    name: str
    block: str
    """The block as the specification names it."""
    plugin: Plugin | None
    """None until the block's module has been imported (`block = "module:Class"`)."""
    options: Any
    """An instance of the block's own options class."""
    kind: Kind
    inputs: tuple[str, ...]
    """Producers in declared order; INPUT is the samples."""
    path: Path = ()
    """Position of the node's table in the specification."""
    first_of: str | None = None
    """Name of a repeated node, on its first copy: the name is taken too, since reading it means the last copy."""

    @property
    def declaration(self) -> BlockDeclaration | None:
        """The block's declaration."""
        return block_declaration(self.plugin)


def block_declaration(plugin: Plugin | None) -> BlockDeclaration | None:
    """Return the declaration of a block's plugin, None for a block that is not resolved yet."""
    if plugin is None:
        return None
    assert isinstance(plugin.declaration, BlockDeclaration)
    return plugin.declaration


@define(kw_only=True, eq=False)
class NodeGraph:
    """A directed acyclic graph of nodes that keeps every rule of `petra_graph.graph.build`."""

    nodes: Mapping[str, Node]
    """In declared order."""

    @cached_property
    def digraph(self) -> nx.DiGraph:
        """The graph in networkx: node names with the attribute `node`, and edges, both in declared order."""
        graph = nx.DiGraph()
        graph.add_nodes_from((name, {"node": node}) for name, node in self.nodes.items())
        graph.add_edges_from(
            (producer, node.name) for node in self.nodes.values() for producer in node.inputs if producer != INPUT
        )
        return graph

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Names in topological order; among nodes that are free, in declared order."""
        declared = {name: index for index, name in enumerate(self.nodes)}
        return tuple(nx.lexicographical_topological_sort(self.digraph, key=declared.__getitem__))

    def consumers(self, name: str) -> tuple[str, ...]:
        """Return the nodes that read a node, in declared order."""
        return tuple(self.digraph.successors(name))

    @property
    def head(self) -> str:
        """The node that computes the loss, which every other node reaches."""
        return self.order[-1]
