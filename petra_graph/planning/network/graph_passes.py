"""The graph passes of a specification, carried out: each is given the network as those before it have left it, and is measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch

from petra_graph.blocks import Shape
from petra_graph.errors import at_path
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.graph_passes import MeasuredGraph
from petra_graph.kinds.author_code import author_code, resolve_location
from petra_graph.kinds.declaration import described
from petra_graph.kinds.plugin import build_plugin
from petra_graph.measure.node_shapes import NodeShapes, measure_shapes
from petra_graph.planning.check.checked_spec import ConfiguredPlugin


def measure_changed(
    graph: NodeGraph, passes: Sequence[ConfiguredPlugin], sample: Shape, dtype: torch.dtype
) -> tuple[NodeGraph, Mapping[str, NodeShapes]]:
    """Return a graph as passes change it, with the shapes of its nodes; arguments besides are those of `measure_shapes`.

    Raises:
        SpecError: a pass, or a block, refuses the network.
        PluginError: code cannot be imported or has failed.
    """
    shapes = measure_shapes(graph, sample, dtype)
    for one in passes:
        with at_path(*one.path):
            made = build_plugin(one.plugin, one.options, MeasuredGraph(graph=graph, shapes=shapes))
            if not isinstance(made, NodeGraph):
                raise one.plugin.broken(f"its build returns {described(made)}, not a NodeGraph")
        if made is not graph:
            graph = NodeGraph(nodes=made.nodes, given=graph.as_given)
            shapes = measure_shapes(graph, sample, dtype)
    return graph, shapes


def sentences(configured: ConfiguredPlugin, kind: Literal["notes", "warnings"], *arguments: Any) -> Iterator[str]:
    """Yield what a pass says of the network that it has changed; nothing where it declares no such function.

    Raises:
        PluginError: its code cannot be imported or has failed.
    """
    location = getattr(configured.plugin.declaration, kind)
    failure = f"{configured.plugin.owned} cannot say what it has changed"
    if location:
        say = resolve_location(location, failure)
        with author_code(failure):
            yield from say(configured.options, *arguments)
