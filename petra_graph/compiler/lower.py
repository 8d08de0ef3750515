"""From a partition to one program a stage: segments, what they keep, and who sends what back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from attrs import frozen

from petra_graph.graph.node_graph import INPUT, NodeGraph
from petra_graph.program.method import Method
from petra_graph.program.partition import Partition, Stage
from petra_graph.program.schedule import depths
from petra_graph.program.stage_program import Edge, InputEdge, Segment, StageProgram
from petra_graph.spec.model import Keeps, Schedule, Uses


def lower(
    graph: NodeGraph,
    partition: Partition,
    *,
    method: Method,
    schedule: Schedule,
    accumulation: int,
    streams: Mapping[str, int],
    last_stage_keeps_graph: bool = False,
) -> tuple[StageProgram, ...]:
    """Return the stages' programs, in the partition's order.

    Args:
        graph: the network.
        partition: its stages.
        method: what nodes keep, and whose parameters their backward uses.
        schedule: how far forwards run ahead.
        accumulation: micro-batches in one update.
        streams: how many tensors each node returns; INPUT is one.
        last_stage_keeps_graph: the last stage keeps graphs, whatever the method; its forward and backward of a
            micro-batch are adjacent, so nothing changes in between.
    """
    modes = {node.name: _Mode(keeps=method.keeps(node.kind), backward=method.backward) for node in graph.nodes.values()}
    if last_stage_keeps_graph:
        modes |= dict.fromkeys(partition.stages[-1].nodes, _Mode(keeps="graph", backward="current"))
    activation_from = {
        name: _activation_from(graph, modes, name)
        for name, node in graph.nodes.items()
        if node.kind == "reversible" and modes[name].keeps == "nothing"
    }
    wiring = _Wiring(graph=graph, modes=modes, activation_from=activation_from, streams=streams)
    ahead = depths(schedule, [stage.distance for stage in partition.stages], accumulation)
    return tuple(
        StageProgram(
            index=index,
            segments=(segments := tuple(_segment(run, wiring) for run in _runs(stage, graph))),
            depth=ahead[index - 1],
            accumulation=accumulation,
            flush=method.flush,
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
class _Mode:
    """How one node gets from its forward to its backward."""

    keeps: Keeps
    backward: Uses


@frozen(kw_only=True)
class _Wiring:
    """What is decided for the whole graph."""

    graph: NodeGraph
    modes: Mapping[str, _Mode]
    activation_from: Mapping[str, Edge]
    """For every node that reconstructs, the edge along which its output comes back."""
    streams: Mapping[str, int]


def _activation_from(graph: NodeGraph, modes: Mapping[str, _Mode], name: str) -> Edge:
    """Choose the consumer that sends a reconstructing node its output: the first that has it exactly, else the first."""
    consumers = graph.consumers[name]
    exact = (reader for reader in consumers if graph.nodes[reader].kind == "head" or modes[reader].keeps != "nothing")
    return Edge(name, next(exact, consumers[0]))


def _segment(run: tuple[str, ...], wiring: _Wiring) -> Segment:
    first, last = wiring.graph.nodes[run[0]], wiring.graph.nodes[run[-1]]
    edges = [Edge(producer, first.name) for producer in first.inputs]
    return Segment(
        nodes=run,
        kind=first.kind,
        keeps=wiring.modes[first.name].keeps,
        backward=wiring.modes[first.name].backward,
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


def _runs(stage: Stage, graph: NodeGraph) -> Iterator[tuple[str, ...]]:
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
