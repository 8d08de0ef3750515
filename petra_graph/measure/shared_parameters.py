"""Parameters that two nodes share, which no stage could update rightly.

A parameter belongs to one node: its stage sums its gradients, steps it at its own staleness, and keeps its optimizer's state.
Two nodes may be in two stages, even in two processes, where each has a copy of its own. Within a node a parameter may be used
as often as its block likes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import UntypedStorage

from petra_graph.errors import Problem
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.kinds.plugin import FIRST_PARTY
from petra_graph.measure.node_shapes import NodeShapes, build_to_look_at


def shared_parameter_problems(graph: NodeGraph, shapes: Mapping[str, NodeShapes]) -> Iterator[Problem]:
    """Build the nodes of other packages without values, and yield the parameters that belong to two of them.

    Raises:
        SpecError, PluginError: as `build_to_look_at`.
    """
    owners: dict[
        UntypedStorage, tuple[str, str]
    ] = {}  # torch has one Python object for a storage, while anyone holds it
    for name in graph.order:
        node = graph.nodes[name]
        if node.plugin is None or node.plugin.distribution == FIRST_PARTY:
            continue
        block = build_to_look_at(node, shapes[name].inputs)
        for key, parameter in block.named_parameters():
            owner, known = owners.setdefault(parameter.untyped_storage(), (name, key))
            if owner != name:
                message = f'nodes "{owner}" and "{name}" share a parameter ("{known}" and "{key}"): a parameter belongs to one node'
                hint = "write both uses into one block, or give each node a parameter of its own"
                yield Problem(message=message, hint=hint, path=node.path)
