"""From node tables to a checked graph: `repeat` unrolled, default inputs and kinds filled in, every rule applied.

`measure` checks the shapes of tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Any

import networkx as nx
from attrs import frozen

from petra_graph.errors import Path, Problem
from petra_graph.graph.node_graph import INPUT, Node, NodeGraph
from petra_graph.plugins.contract import Plugin
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
    problems = [*names_are_unique(nodes), *inputs_exist(nodes), *kinds_fit_blocks(nodes)]
    known = {INPUT, *(node.name for node in nodes)}
    if len(known) <= len(nodes) or not nodes or any(one not in known for node in nodes for one in node.inputs):
        return None, problems
    graph = NodeGraph(nodes={node.name: node for node in nodes})
    broken = [*is_acyclic(graph), *has_one_source(graph), *has_one_head(graph)]
    # Where a node reads nothing, those before it cannot reach the head, which is the same mistake.
    return graph, problems + (broken or list(every_node_counts(graph)))


def _unroll(tables: Sequence[NodeInput]) -> Iterator[Node]:
    """Yield nodes in declared order; in another node's inputs a repeated node's name means its last copy."""
    last_copy = {
        table.spec.name: f"{table.spec.name}.{table.spec.repeat - 1}" for table in tables if table.spec.repeat > 1
    }
    before = INPUT
    for table in tables:
        spec = table.spec
        kind = spec.kind or (table.plugin.code.kind if table.plugin else "buffered")
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


def names_are_unique(nodes: Sequence[Node]) -> Iterator[Problem]:
    """No two nodes share a name, and none takes the input's."""
    taken = [(name, node) for node in nodes for name in (node.name, node.first_of) if name is not None]
    counts = Counter(name for name, _ in taken)
    for name, node in taken:
        if name == INPUT:
            yield Problem(
                message=f'a node cannot be called "{INPUT}", which means the samples',
                hint="choose another name",
                path=(*node.path, "name"),
            )
    last = {name: node.path for name, node in taken if counts[name] > 1 and name != INPUT}
    by_path = {path: name for name, path in reversed(last.items())}  # the copies of a repeated node are one mistake
    for path, name in by_path.items():
        yield Problem(
            message=f'{counts[name]} nodes are called "{name}"',
            hint="names must be unique; `repeat = n` makes NAME.0 to NAME.(n-1)",
            path=(*path, "name"),
        )


def inputs_exist(nodes: Sequence[Node]) -> Iterator[Problem]:
    """Every input names a node, once."""
    known = dict.fromkeys([INPUT, *(node.name for node in nodes)])
    for node in nodes:
        for producer, count in Counter(node.inputs).items():
            if count > 1:
                yield Problem(
                    message=f'node "{node.name}" reads "{producer}" {count} times',
                    hint="name each input once; a block can use a stream as often as it likes",
                    path=(*node.path, "inputs"),
                )
            if producer not in known:
                close = get_close_matches(producer, known, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"nodes: {', '.join(islice(known, 12))}"
                yield Problem(
                    message=f'node "{node.name}" reads "{producer}", which is not a node',
                    hint=hint,
                    path=(*node.path, "inputs"),
                )


def kinds_fit_blocks(nodes: Sequence[Node]) -> Iterator[Problem]:
    """A reversible node needs a block with an inverse, a head node a head block."""
    for node in nodes:
        if node.plugin is None:
            continue
        declared = node.plugin.code.kind
        path = (*node.path, "kind")
        if node.kind == "reversible" and declared != "reversible":
            yield Problem(
                message=f'node "{node.name}" is reversible but its block "{node.block}" has no inverse',
                hint=f'set kind = "{declared}", or use a reversible block (`petra-graph list blocks` shows them)',
                path=path,
            )
        elif (node.kind == "head") != (declared == "head"):
            yield Problem(
                message=f'node "{node.name}" has kind "{node.kind}" but its block "{node.block}" is a {declared} block',
                hint=f'leave out `kind`, or set kind = "{declared}"',
                path=path,
            )


def is_acyclic(graph: NodeGraph) -> Iterator[Problem]:
    """No node depends on its own output."""
    if nx.is_directed_acyclic_graph(graph.digraph):
        return
    names = [edge[0] for edge in nx.find_cycle(graph.digraph)]
    yield Problem(
        message=f"the graph has a cycle: {' -> '.join([*names, names[0]])}",
        hint="a node can only read nodes that do not depend on it",
        path=(*graph.nodes[names[0]].path, "inputs"),
    )


def has_one_source(graph: NodeGraph) -> Iterator[Problem]:
    """Exactly one node reads the samples, and every node reads something."""
    sources = [node for node in graph.nodes.values() if INPUT in node.inputs]
    if not sources:
        yield Problem(message="no node reads the samples", hint=f'give one node inputs = ["{INPUT}"]', path=("graph",))
    for node in sources[1:]:
        yield Problem(
            message=f'node "{node.name}" reads the samples, as "{sources[0].name}" does',
            hint="let one node read the samples, and the others read that node",
            path=(*node.path, "inputs"),
        )
    for node in graph.nodes.values():
        if not node.inputs:
            yield Problem(
                message=f'node "{node.name}" reads nothing',
                hint="leave out `inputs` to read the node before it",
                path=(*node.path, "inputs"),
            )


def has_one_head(graph: NodeGraph) -> Iterator[Problem]:
    """Exactly one node is a head, and no node reads it."""
    heads = [node for node in graph.nodes.values() if node.kind == "head"]
    if not heads:
        last = list(graph.nodes.values())[-1]
        yield Problem(
            message="the graph has no head node, which is where the loss is",
            hint='end with a head block, such as block = "pool-linear"',
            path=last.path,
        )
    for node in heads[1:]:
        yield Problem(
            message=f'node "{node.name}" is a second head; the first is "{heads[0].name}"',
            hint="a graph has one head",
            path=node.path,
        )
    for node in heads:
        for reader in graph.consumers(node.name):
            yield Problem(
                message=f'node "{reader}" reads the head "{node.name}", whose output goes to the loss',
                hint="put the head last",
                path=(*graph.nodes[reader].path, "inputs"),
            )


def every_node_counts(graph: NodeGraph) -> Iterator[Problem]:
    """Every node's output reaches the head; with one source and no cycle, the samples then reach every node."""
    head = next(node.name for node in graph.nodes.values() if node.kind == "head")
    reaching = nx.ancestors(graph.digraph, head) | {head}
    for node in graph.nodes.values():
        if node.name not in reaching:
            yield Problem(
                message=f'the output of node "{node.name}" never reaches the head "{head}"',
                hint="let a later node name it in `inputs`, or remove it",
                path=node.path,
            )
