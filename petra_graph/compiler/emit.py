"""From a partition to one program a stage: segments, what they keep, and who sends what back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from attrs import frozen

from petra_graph.graph.stage_graph import INPUT, StageGraph
from petra_graph.program.method import Keeps, Method
from petra_graph.program.partition import Partition, Stage
from petra_graph.program.schedule import depth
from petra_graph.program.stage_program import Edge, InputEdge, Segment, StageProgram
from petra_graph.spec.model import ScheduleName


def emit(
    graph: StageGraph,
    partition: Partition,
    *,
    method: Method,
    schedule: ScheduleName,
    accumulation: int,
    streams: Mapping[str, int],
) -> tuple[StageProgram, ...]:
    """Return the stages' programs, in the partition's order.

    Args:
        graph: the network.
        partition: its stages.
        method: what nodes keep.
        schedule: how far forwards run ahead.
        accumulation: micro-batches in one update.
        streams: how many tensors each node returns; INPUT is one.
    """
    keeps = {node.name: method.keeps(node.kind) for node in graph.nodes.values()}
    activation_from = {
        name: _activation_from(graph, keeps, name)
        for name, node in graph.nodes.items()
        if node.kind == "reversible" and keeps[name] == "nothing"
    }
    wiring = _Wiring(graph=graph, keeps=keeps, activation_from=activation_from, streams=streams)
    return tuple(
        StageProgram(
            index=index,
            segments=(segments := tuple(_segment(run, wiring) for run in _runs(stage, graph))),
            depth=depth(schedule, stage.distance),
            accumulation=accumulation,
            device=stage.device,
            receives=tuple(
                entry.edge
                for segment in segments
                for entry in segment.inputs
                if entry.edge.producer == INPUT or entry.edge.producer not in stage.nodes
            ),
            sends=tuple(edge for segment in segments for edge in segment.outputs if edge.consumer not in stage.nodes),
        )
        for index, stage in enumerate(partition.stages, start=1)
    )


@frozen(kw_only=True)
class _Wiring:
    """What is decided for the whole graph."""

    graph: StageGraph
    keeps: Mapping[str, Keeps]
    activation_from: Mapping[str, Edge]
    """For every node that reconstructs, the edge along which its output comes back."""
    streams: Mapping[str, int]


def _activation_from(graph: StageGraph, keeps: Mapping[str, Keeps], name: str) -> Edge:
    """Choose the consumer that sends a reconstructing node its output: the first that has it exactly, else the first."""
    consumers = graph.consumers[name]
    exact = (reader for reader in consumers if graph.nodes[reader].kind == "head" or keeps[reader] != "nothing")
    return Edge(name, next(exact, consumers[0]))


def _segment(run: tuple[str, ...], wiring: _Wiring) -> Segment:
    first, last = wiring.graph.nodes[run[0]], wiring.graph.nodes[run[-1]]
    edges = [Edge(producer, first.name) for producer in first.inputs]
    return Segment(
        nodes=run,
        kind=first.kind,
        keeps=wiring.keeps[first.name],
        inputs=tuple(
            InputEdge(
                edge=edge,
                streams=wiring.streams[edge.producer],
                returns_activation=wiring.activation_from.get(edge.producer) == edge,
            )
            for edge in edges
        ),
        outputs=tuple(Edge(last.name, reader) for reader in wiring.graph.consumers[last.name]),
        activation_from=wiring.activation_from.get(last.name),
    )


def _runs(stage: Stage, graph: StageGraph) -> Iterator[tuple[str, ...]]:
    """Yield the stage's segments: consecutive buffered nodes together, when nothing enters or leaves between them."""
    run = [stage.nodes[0]]
    for before, name in pairwise(stage.nodes):
        both_buffered = graph.nodes[before].kind == graph.nodes[name].kind == "buffered"
        if both_buffered and graph.consumers[before] == (name,) and graph.nodes[name].inputs == (before,):
            run.append(name)
        else:
            yield tuple(run)
            run = [name]
    yield tuple(run)
