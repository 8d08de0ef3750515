"""Cutting the graph into stages and placing them on devices."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import networkx as nx

from petra_graph.errors import Problem, SpecError, suggestion
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.program.partition import Partition, Stage

_PATH = ("partition", "stages")


def per_block(graph: NodeGraph) -> tuple[tuple[str, ...], ...]:
    """Return the paper's stages: every node one."""
    return tuple((name,) for name in graph.order)


def partition(graph: NodeGraph, cuts: Sequence[Sequence[str]], devices: Sequence[str]) -> Partition:
    """Make stages of `cuts`, a list of node names each, and spread them over `devices` in order.

    Consecutive stages share a device, and no device has more than one stage more than another.

    Raises:
        SpecError: a node is missing, unknown or placed twice, a stage is empty, or a stage reads a later one.
    """
    problems = list(_misplaced(graph, cuts))
    if problems:
        raise SpecError(problems)
    place = {name: index for index, names in enumerate(cuts) for name in names}
    problems = list(_backward_edges(graph, place))
    if problems:
        raise SpecError(problems)
    distances = _distances(graph, place)
    position = {name: index for index, name in enumerate(graph.order)}
    return Partition(
        stages=tuple(
            Stage(
                nodes=tuple(sorted(names, key=position.__getitem__)),
                device=devices[index * len(devices) // len(cuts)],
                distance=distances[index],
            )
            for index, names in enumerate(cuts)
        )
    )


def _misplaced(graph: NodeGraph, cuts: Sequence[Sequence[str]]) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for index, names in enumerate(cuts):
        if not names:
            yield Problem(message=f"stage {index + 1} is empty", hint="remove it", path=(*_PATH, index))
        for name in names:
            if name not in graph.nodes:
                copies = _copies(graph, name)
                yield Problem(
                    message=f'stage {index + 1} names "{name}", which is no node',
                    hint=f"{name} is repeated: name {', '.join(copies)}" if copies else suggestion(name, graph.nodes),
                    path=(*_PATH, index),
                )
                for copy in copies:  # That these are missing is no news.
                    seen.setdefault(copy, index)
            elif name in seen:
                yield Problem(
                    message=f'node "{name}" is in {_both(seen[name] + 1, index + 1)}',
                    hint="every node belongs to one stage",
                    path=(*_PATH, index),
                )
            seen.setdefault(name, index)
    missing = [name for name in graph.order if name not in seen]
    if missing:
        yield Problem(
            message=f"no stage holds {', '.join(missing)}", hint="every node belongs to one stage", path=_PATH
        )


def _copies(graph: NodeGraph, name: str) -> list[str]:
    """Return the nodes that a repeated node was unrolled to."""
    if all(node.first_of != name for node in graph.nodes.values()):
        return []
    return [copy for copy in graph.nodes if re.fullmatch(rf"{re.escape(name)}\.\d+", copy)]


def _backward_edges(graph: NodeGraph, place: dict[str, int]) -> Iterator[Problem]:
    """Stages in topological order form an acyclic graph, and its last one is the head's."""
    for producer, consumer in graph.digraph.edges:
        if place[producer] > place[consumer]:
            yield Problem(
                message=f'stage {place[consumer] + 1} reads "{producer}" of stage {place[producer] + 1}, a later one',
                hint="list stages in the order of the data, and cut so that none depends on a later one",
                path=_PATH,
            )


def _distances(graph: NodeGraph, place: dict[str, int]) -> dict[int, int]:
    """Return for every stage the longest path to the head's, counted in stages."""
    stages = nx.DiGraph()
    stages.add_nodes_from(place.values())
    stages.add_edges_from((place[a], place[b]) for a, b in graph.digraph.edges if place[a] != place[b])
    distances: dict[int, int] = {}
    for index in sorted(stages, reverse=True):
        distances[index] = max((1 + distances[reader] for reader in stages.successors(index)), default=0)
    return distances


def _both(first: int, second: int) -> str:
    return f"stages {first} and {second}" if first != second else f"stage {first} twice"
