"""Chains of residual nodes made reversible, by `[conversion]`: kinds of nodes, their steps, and what later nodes read of them.

stem -> a -> b -> c -> head         streams   1  1  1  1         all buffered
stem -> a -> b -> c -> head                   1  2  2  2         a, b, c reversible; the head reads the first of two
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

from attrs import evolve

from petra_graph.errors import Problem, SpecError, likely_meant
from petra_graph.graph.node_graph import INPUT, Conversion, Node, NodeGraph
from petra_graph.measure.node_shapes import NodeShapes
from petra_graph.spec.model import ConversionSpec

_PATH = ("conversion", "nodes")


def converted(graph: NodeGraph, shapes: Mapping[str, NodeShapes], spec: ConversionSpec) -> NodeGraph:
    """Return the graph with its chains made reversible; with the coupling "none", the graph itself.

    A node that stands alone stays buffered: as a reversible node it would hand on two streams in place of one, and spare none.

    Raises:
        SpecError: a pattern names no node that fits, no two of them follow one another, or a reversible node reads a chain; all problems.
    """
    if spec.coupling == "none":
        return graph
    places = _places(graph, shapes, spec)
    problems = [*_unmatched(graph, shapes, spec)]
    if not problems and not places:
        message = "no two nodes follow one another that could be a chain"
        hint = "a node of a chain is buffered, reads the node before it alone, and returns one stream of the shape that it reads"
        problems.append(Problem(message=message, hint=hint, path=_PATH))
    nodes = dict(graph.nodes)
    for name, node in graph.nodes.items():
        if name in places:
            anchor = spec.anchors is not None and (places[name] + 1) % spec.anchors == 0
            conversion = Conversion(reads=(0,), step=spec, first=places[name] == 0)
            nodes[name] = evolve(node, kind="buffered" if anchor else "reversible", conversion=conversion)
        elif places.keys().isdisjoint(node.inputs):
            continue
        elif node.kind == "reversible":
            message = f'node "{name}" is reversible, and reads a chain that [conversion] makes: it would have to return two streams'
            hint = 'set its kind = "buffered", or leave the chain out by conversion.nodes'
            problems.append(Problem(message=message, hint=hint, path=node.path))
        else:
            nodes[name] = evolve(node, conversion=Conversion(reads=_reads(node, shapes, places)))
    if problems:
        raise SpecError(problems)
    return NodeGraph(nodes=nodes)


def unconverted(graph: NodeGraph) -> NodeGraph:
    """Return the graph as it was before `converted`."""
    nodes = {
        name: node
        if node.conversion is None
        else evolve(node, conversion=None, kind="buffered" if node.conversion.step else node.kind)
        for name, node in graph.nodes.items()
    }
    return NodeGraph(nodes=nodes)


def _places(graph: NodeGraph, shapes: Mapping[str, NodeShapes], spec: ConversionSpec) -> dict[str, int]:
    """Return the nodes of chains with their places in them, counted from 0."""
    places: dict[str, int] = {}
    for name in graph.order:
        node = graph.nodes[name]
        if any(fnmatchcase(name, pattern) for pattern in spec.nodes) and _fits(node, shapes[name]):
            places[name] = places.get(node.inputs[0], -1) + 1
    alone = {
        name
        for name, place in places.items()
        if place == 0 and not any(reader in places for reader in graph.consumers(name))
    }
    return {name: place for name, place in places.items() if name not in alone}


def _fits(node: Node, shapes: NodeShapes) -> bool:
    one_stream = len(shapes.inputs) == 1 and shapes.inputs == shapes.outputs and shapes.dtypes[0].is_floating_point
    return node.kind == "buffered" and len(node.inputs) == 1 and node.inputs != (INPUT,) and one_stream


def _reads(node: Node, shapes: Mapping[str, NodeShapes], places: Mapping[str, int]) -> tuple[int, ...]:
    """Return the places of the streams that a node's own block reads, where chains hand on a second one."""
    reads: list[int] = []
    at = 0
    for producer in node.inputs:
        own = 1 if producer == INPUT else len(shapes[producer].outputs)
        reads += range(at, at + own)
        at += own + (producer in places)
    return tuple(reads)


def _unmatched(graph: NodeGraph, shapes: Mapping[str, NodeShapes], spec: ConversionSpec) -> Iterator[Problem]:
    fitting = [name for name, node in graph.nodes.items() if _fits(node, shapes[name])]
    for pattern in spec.nodes:
        if pattern != "*" and not any(fnmatchcase(name, pattern) for name in fitting):
            near = likely_meant(pattern.strip("*."), fitting)
            meant = f"did you mean {near[0]!r}? " if near else ""
            hint = f"{meant}nodes that can be: {', '.join(fitting) or 'none'}"
            yield Problem(message=f"{pattern!r} names no node that can be of a chain", hint=hint, path=_PATH)
