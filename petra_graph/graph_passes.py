"""All that the code of a graph pass needs of the core's network, in one import.

    def passed(options: Options, graph: MeasuredGraph) -> NodeGraph:
        nodes = {name: evolve(node, wrappers=(*node.wrappers, MyWrapper(...))) for name, node in graph.nodes.items()}
        return NodeGraph(nodes=nodes)

A `NodeWrapper` says what its block reads of the node's inputs, and builds the block around the one inside.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from petra_graph.blocks import Block
from petra_graph.graph.node_graph import INPUT as INPUT
from petra_graph.graph.node_graph import Node as Node
from petra_graph.graph.node_graph import NodeGraph as NodeGraph
from petra_graph.graph.node_graph import NodeWrapper as NodeWrapper
from petra_graph.measure.build_block import build_to_look_at
from petra_graph.measure.node_shapes import NodeShapes as NodeShapes
from petra_graph.record.weights import SEPARATOR as SEPARATOR
from petra_graph.record.weights import is_named as is_named


@frozen(kw_only=True)
class MeasuredGraph:
    """A graph with the shapes of its nodes."""

    graph: NodeGraph
    shapes: Mapping[str, NodeShapes]

    @property
    def nodes(self) -> Mapping[str, Node]:
        """In declared order."""
        return self.graph.nodes

    def block(self, name: str) -> Block:
        """Return a node's module without values, to look at."""
        return build_to_look_at(self.nodes[name], self.shapes[name].inputs)
