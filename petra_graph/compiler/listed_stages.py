"""Cutting the graph into stages and placing them on devices."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import networkx as nx

from petra_graph.errors import Problem, SpecError, suggestion
from petra_graph.graph.node_graph import NodeGraph, distances, stage_graph
from petra_graph.program.placement import Partition, Stage

_PATH = ("partition", "stages")


def per_block(graph: NodeGraph) -> tuple[tuple[str, ...], ...]:
    """Return the paper's stages: one for each node."""
    return tuple((name,) for name in graph.order)


def partition(graph: NodeGraph, cuts: Sequence[Sequence[str]], devices: Sequence[str]) -> Partition:
    """Make stages of `cuts`, a list of node names each, and spread them over `devices` in order.

    Consecutive stages share a device, and the devices' numbers of stages differ by at most one.

    Raises:
        SpecError: a node is missing, unknown or listed twice, a stage is empty, or a stage reads a later one.
    """
    if problems := list(_membership_problems(graph, cuts)):
        raise SpecError(problems)
    stages = stage_graph(graph.digraph, cuts)
    if problems := list(_order_problems(stages)):
        raise SpecError(problems)
    distance = distances(stages)
    position = {name: index for index, name in enumerate(graph.order)}
    return Partition(
        stages=tuple(
            Stage(
                nodes=tuple(sorted(names, key=position.__getitem__)),
                device=devices[index * len(devices) // len(cuts)],
                distance=distance[index + 1],
            )
            for index, names in enumerate(cuts)
        )
    )


def _membership_problems(graph: NodeGraph, cuts: Sequence[Sequence[str]]) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for index, names in enumerate(cuts):
        if not names:
            yield Problem(message=f"stage {index + 1} is empty", hint="remove it", path=(*_PATH, index))
        for name in names:
            if name not in graph.nodes:
                copies = _copies(graph, name)
                yield Problem(
                    message=f'stage {index + 1} names "{name}", which is not a node',
                    hint=f"{name} is repeated: name {', '.join(copies)}" if copies else suggestion(name, graph.nodes),
                    path=(*_PATH, index),
                )
                for copy in copies:  # They are not reported as missing too.
                    seen.setdefault(copy, index)
            elif name in seen:
                stages = (
                    f"stages {seen[name] + 1} and {index + 1}" if seen[name] != index else f"stage {index + 1} twice"
                )
                yield Problem(
                    message=f'node "{name}" is in {stages}',
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
    """Return the copies of a repeated node."""
    if all(node.first_of != name for node in graph.nodes.values()):
        return []
    return [copy for copy in graph.nodes if re.fullmatch(rf"{re.escape(name)}\.\d+", copy)]


def _order_problems(stages: nx.DiGraph) -> Iterator[Problem]:
    """Yield the edges into an earlier stage; without any, the listed order is a topological one."""
    for source, reader, edges in stages.edges(data="edges"):
        for producer, _ in edges if source > reader else ():
            yield Problem(
                message=f'stage {reader} reads "{producer}" of stage {source}, a later one',
                hint="list stages in the order of the data, and cut so that none depends on a later one",
                path=_PATH,
            )
