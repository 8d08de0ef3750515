"""From node tables to a checked graph: `repeat` unrolled, default inputs and kinds filled in, every rule applied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from attrs import frozen

from petra_graph.errors import Path, Problem
from petra_graph.graph.graph_rules import GRAPH, OUTPUTS, WIRING
from petra_graph.graph.node_graph import INPUT, Node, NodeGraph, block_declaration
from petra_graph.kinds.plugin import Plugin
from petra_graph.spec.model import NodeSpec


@frozen(kw_only=True)
class NodeInput:
    """A node's table with its resolved plugin and its options."""

    spec: NodeSpec
    plugin: Plugin | None
    options: Any
    path: Path


def build_graph(tables: Sequence[NodeInput]) -> tuple[NodeGraph | None, list[Problem]]:
    """Build the graph of `tables`.

    Returns:
        The graph, None where the nodes' inputs allow none, and all problems found.
    """
    nodes = list(_unroll(tables))
    problems = [problem for rule in WIRING for problem in rule(nodes)]
    wired = not any(problems) or len({node.name for node in nodes}) == len(nodes)
    known = {INPUT, *(node.name for node in nodes)}
    if not wired or not nodes or any(producer not in known for node in nodes for producer in node.inputs):
        return None, problems
    graph = NodeGraph(nodes={node.name: node for node in nodes})
    broken = [problem for rule in GRAPH for problem in rule(graph)]
    problems += broken or [problem for rule in OUTPUTS for problem in rule(graph)]
    return graph, problems


def _unroll(tables: Sequence[NodeInput]) -> Iterator[Node]:
    """Yield nodes in declared order; in another node's inputs a repeated node's name means its last copy."""
    last_copy = {
        table.spec.name: f"{table.spec.name}.{table.spec.repeat - 1}" for table in tables if table.spec.repeat > 1
    }
    before = INPUT
    for table in tables:
        spec = table.spec
        declaration = block_declaration(table.plugin)
        kind = spec.kind or (declaration.kind if declaration else "buffered")
        inputs = (before,) if spec.inputs is None else tuple(last_copy.get(name, name) for name in spec.inputs)
        names = [spec.name] if spec.repeat == 1 else [f"{spec.name}.{index}" for index in range(spec.repeat)]
        for index, name in enumerate(names):
            yield Node(
                name=name,
                block=spec.block,
                plugin=table.plugin,
                options=table.options,
                kind=kind,
                inputs=inputs,
                path=table.path,
                first_of=spec.name if spec.repeat > 1 and index == 0 else None,
            )
            before, inputs = name, (name,)
