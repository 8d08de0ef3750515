"""Chains of residual nodes made reversible, by `[conversion]`: kinds of nodes, their steps, and what later nodes read of them.

stem -> a -> b -> c -> head         streams   1  1  1  1         all buffered
stem -> a -> b -> c -> head                   1  2  2  2         a, b, c reversible; the head reads the first of two
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import ClassVar, TypeVar

from attrs import evolve, frozen

from petra_graph.blocks import Block, Shape
from petra_graph.blocks.couplings.residual_chain import COEFFICIENTS
from petra_graph.errors import Problem, SpecError, likely_meant
from petra_graph.graph_passes import INPUT, MeasuredGraph, Node, NodeGraph, NodeShapes, NodeWrapper
from petra_graph.units import plural
from petra_graph_modules.converted_blocks import Coupling, reader_around, step_around
from petra_graph_modules.declared_passes import ConversionOptions

T = TypeVar("T")
_PATH = ("conversion", "nodes")


@frozen(kw_only=True)
class Step(NodeWrapper):
    """A block as a step of a reversible chain."""

    inverts: ClassVar[bool] = True
    coupling: Coupling
    first: bool
    """Whether the chain begins with it."""
    alpha: float
    beta: float

    @property
    def tensors(self) -> tuple[str, ...]:
        """The coefficients of dual residual nodes."""
        return COEFFICIENTS if self.coupling == "dual-residual" else ()

    def read(self, inputs: Sequence[T]) -> Sequence[T]:
        """Return the first of the chain's streams."""
        return inputs[:1]

    def wrap(self, block: Block, inputs: Sequence[Shape]) -> Block:
        return step_around(block, inputs, self.coupling, first=self.first, alpha=self.alpha, beta=self.beta)


@frozen(kw_only=True)
class Reader(NodeWrapper):
    """A block that reads a chain."""

    reads: tuple[int, ...]
    """Places of the streams that the block itself reads."""

    def read(self, inputs: Sequence[T]) -> Sequence[T]:
        return [inputs[at] for at in self.reads]

    def wrap(self, block: Block, inputs: Sequence[Shape]) -> Block:
        return reader_around(block, inputs, self.reads)


def converted(options: ConversionOptions, measured: MeasuredGraph) -> NodeGraph:
    """Return the graph with its chains made reversible; with the coupling "none", the graph itself.

    A node that stands alone stays buffered: as a reversible node it would hand on two streams in place of one, and spare none.

    Raises:
        SpecError: a pattern names no node that fits, no two of them follow one another, or a reversible node reads a chain; all problems.
    """
    graph, shapes = measured.graph, measured.shapes
    if options.coupling == "none":
        return graph
    places = _places(graph, shapes, options)
    problems = [*_unmatched(graph, shapes, options)]
    if not problems and not places:
        message = "no two nodes follow one another that could be a chain"
        hint = "a node of a chain is buffered, reads the node before it alone, and returns one stream of the shape that it reads"
        problems.append(Problem(message=message, hint=hint, path=_PATH))
    nodes = dict(graph.nodes)
    for name, node in graph.nodes.items():
        if name in places:
            anchor = options.anchors is not None and (places[name] + 1) % options.anchors == 0
            step = Step(coupling=options.coupling, first=places[name] == 0, alpha=options.alpha, beta=options.beta)
            nodes[name] = evolve(node, kind="buffered" if anchor else "reversible", wrappers=(*node.wrappers, step))
        elif places.keys().isdisjoint(node.inputs):
            continue
        elif node.kind == "reversible":
            message = f'node "{name}" is reversible, and reads a chain that [conversion] makes: it would have to return two streams'
            hint = 'set its kind = "buffered", or leave the chain out by conversion.nodes'
            problems.append(Problem(message=message, hint=hint, path=node.path))
        else:
            reader = Reader(reads=_reads(node, shapes, places))
            nodes[name] = evolve(node, wrappers=(*node.wrappers, reader))
    if problems:
        raise SpecError(problems)
    return NodeGraph(nodes=nodes)


def notes(options: ConversionOptions, graph: NodeGraph, difference: Callable[[], float]) -> Iterator[str]:
    """Say how many nodes are converted, and how far the converted network is from the network itself; nothing with the coupling "none"."""
    steps = [wrapper for node in graph.nodes.values() for wrapper in node.wrappers if isinstance(wrapper, Step)]
    if steps:
        chains = sum(step.first for step in steps)
        yield (
            f"{plural(len(steps), 'node')} in {plural(chains, 'chain')} are reversible ({options.coupling}); for the first micro-batch, "
            f"the network's output differs from the unconverted one's by {difference():.2g} of its norm"
        )


def _places(graph: NodeGraph, shapes: Mapping[str, NodeShapes], options: ConversionOptions) -> dict[str, int]:
    """Return the nodes of chains with their places in them, counted from 0."""
    places: dict[str, int] = {}
    for name in graph.order:
        node = graph.nodes[name]
        if any(fnmatchcase(name, pattern) for pattern in options.nodes) and _fits(node, shapes[name]):
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
        own = len(shapes[node.name].inputs) if producer == INPUT else len(shapes[producer].outputs)
        reads += range(at, at + own)
        at += own + (producer in places)
    return tuple(reads)


def _unmatched(graph: NodeGraph, shapes: Mapping[str, NodeShapes], options: ConversionOptions) -> Iterator[Problem]:
    fitting = [name for name, node in graph.nodes.items() if _fits(node, shapes[name])]
    for pattern in options.nodes:
        if pattern != "*" and not any(fnmatchcase(name, pattern) for name in fitting):
            near = likely_meant(pattern.strip("*."), fitting)
            meant = f"did you mean {near[0]!r}? " if near else ""
            hint = f"{meant}nodes that can be: {', '.join(fitting) or 'none'}"
            yield Problem(message=f"{pattern!r} names no node that can be of a chain", hint=hint, path=_PATH)
