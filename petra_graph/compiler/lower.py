"""From a graph to the stages' programs: nodes cut into stages, stages on devices, segments and channels.

Decision: a program is complete. Lowering decides all of a channel; a runtime opens transports and compiles nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from attrs import evolve, field, frozen

from petra_graph.compiler.spec_checks import refuse
from petra_graph.errors import Problem, suggestion
from petra_graph.graph.node_graph import INPUT, NodeGraph, distances, stage_graph
from petra_graph.program.channels import (
    WEIGHT,
    Channel,
    ChannelKey,
    Edge,
    MessageLayout,
    StreamType,
    capacity,
    stream_layouts,
)
from petra_graph.program.method import Method, Mode, is_delayed
from petra_graph.program.schedule import depths
from petra_graph.program.stage_program import InputEdge, Partition, Placement, Segment, Stage, StageProgram
from petra_graph.spec.model import KeepsByNode, PrecisionSpec, Schedule

_ONE_STAGE = "every node belongs to one stage"


def per_block(graph: NodeGraph) -> tuple[tuple[str, ...], ...]:
    """Return the paper's stages: one for each node."""
    return tuple((name,) for name in graph.order)


def partition(graph: NodeGraph, cuts: Sequence[Sequence[str]], devices: Sequence[str]) -> Partition:
    """Make stages of `cuts`, a list of node names each, and spread them over `devices` in order; SpecError: they are no partition into an acyclic graph."""
    seen, problems = dict[str, int](), list[Problem]()

    def wrong(message: str, hint: str, *place: int) -> None:
        problems.append(Problem(message=message, hint=hint, path=("partition", "stages", *place)))

    for index, names in enumerate(cuts, start=1):
        if not names:
            wrong(f"stage {index} is empty", "remove it", index - 1)
        for name in names:
            if name not in graph.nodes:
                wrong(f'stage {index} names "{name}", which is not a node', suggestion(name, graph.nodes), index - 1)
            elif name in seen:
                wrong(f'node "{name}" is in stage {seen[name]}, and again in stage {index}', _ONE_STAGE, index - 1)
            seen.setdefault(name, index)
    if missing := [name for name in graph.order if name not in seen]:
        wrong(f"no stage holds {', '.join(missing)}", _ONE_STAGE)
    refuse(problems)
    over = stage_graph(graph.digraph, cuts)
    hint = "list stages in the order of the data, and cut so that none depends on a later one"
    for source, reader, edges in over.edges(data="edges"):
        for producer, _ in edges if source > reader else ():
            wrong(f'stage {reader} reads "{producer}" of stage {source}, a later one', hint)
    refuse(problems)  # Without such edges the listed order is a topological one.
    distance, position = distances(over), {name: index for index, name in enumerate(graph.order)}
    stages = (
        Stage(nodes=tuple(sorted(names, key=position.__getitem__)), device="", distance=distance[index])
        for index, names in enumerate(cuts, start=1)
    )
    return Partition(stages=tuple(stages)).spread_over(devices)


@frozen(kw_only=True)
class MessageTypes:
    """The streams that nodes return, and how messages between stages hold them."""

    streams: Mapping[str, tuple[StreamType, ...]]
    inputs: int = 1
    precision: PrecisionSpec = field(factory=PrecisionSpec)
    batch: int = 1
    evaluation_batch: int = 1


@frozen(kw_only=True)
class Lowering:
    """What the programs follow from, beside the stages: the network and the method."""

    graph: NodeGraph
    method: Method
    accumulation: int
    messages: MessageTypes
    kept: KeepsByNode = field(factory=dict)
    allow_stored: bool = False
    """Nodes of delayed stages may be among them that keep their graphs."""

    def placed(self, placement: Placement) -> tuple[StageProgram, ...]:
        own = self if placement.kept is None else evolve(self, kept=placement.kept)
        return own.programs(placement, placement.schedule)

    def programs(self, partition: Partition, schedule: Schedule) -> tuple[StageProgram, ...]:
        """Return the programs of stages, in their order, with these depths."""
        flush, messages, stages = self.method.flush, self.messages, partition.stages
        depth = depths(schedule, [one.distance for one in stages], self.accumulation)
        modes = {
            name: self.method.mode(
                self.graph.nodes[name].kind,
                self.kept.get(name),
                delayed=is_delayed(ahead, flush),
                allow_stored=self.allow_stored,
            )
            for stage, ahead in zip(stages, depth, strict=True)
            for name in stage.nodes
        }
        segments = [tuple(self._segments(stage, modes)) for stage in stages]
        edges = stage_graph(self.graph.digraph, [stage.nodes for stage in stages]).edges(data="edges")
        between = {Edge(*edge): (sender, receiver) for sender, receiver, inside in edges for edge in inside}

        # Two channels for each edge between two stages; both stages hold equal ones.
        channels: list[list[Channel]] = [[] for _ in stages]
        for entry in (entry for own in segments for segment in own for entry in segment.inputs):
            if entry.edge not in between:
                continue
            (producer, _), (sender, receiver) = entry.edge, between[entry.edge]
            room = capacity(depth[sender - 1], depth[receiver - 1])
            streams, precision = messages.streams[producer], messages.precision
            sent = stream_layouts(streams, precision, precision.channel_dtype)
            # The gradients, the activation after them, and the weight of the targets.
            returned = (*(one.gradient() for one in sent), *(sent if entry.returns_activation else ()), WEIGHT)
            there, back = (MessageLayout(tensors=one, samples=messages.batch) for one in (sent, returned))
            evaluated = stream_layouts(streams, precision, "as-streams")
            evaluation = MessageLayout(tensors=evaluated, samples=messages.evaluation_batch)
            for stage in (sender, receiver):
                channels[stage - 1] += [
                    Channel(ChannelKey(entry.edge, "forward"), sender, receiver, there, evaluation, room),
                    Channel(ChannelKey(entry.edge, "backward"), receiver, sender, back, None, room),
                ]
        return tuple(
            StageProgram(
                index=index,
                segments=own,
                depth=depth[index - 1],
                accumulation=self.accumulation,
                flush=flush,
                device=stage.device,
                receives=tuple(
                    entry.edge
                    for segment in own
                    for entry in segment.inputs
                    if entry.edge.producer == INPUT or entry.edge in between
                ),
                sends=tuple(edge for segment in own for edge in segment.outputs if edge in between),
                channels=tuple(channels[index - 1]),
            )
            for index, (stage, own) in enumerate(zip(stages, segments, strict=True), start=1)
        )

    def _segments(self, stage: Stage, modes: Mapping[str, Mode]) -> Iterator[Segment]:
        """Yield the stage's segments: consecutive buffered nodes that keep the same, when nothing enters or leaves between them, and others alone."""
        graph, runs = self.graph, [[stage.nodes[0]]]
        for before, name in pairwise(stage.nodes):
            both_buffered = graph.nodes[before].kind == graph.nodes[name].kind == "buffered"
            alone = graph.consumers(before) == (name,) and graph.nodes[name].inputs == (before,)
            if both_buffered and modes[before] == modes[name] and alone:
                runs[-1].append(name)
            else:
                runs.append([name])
        for run in runs:
            first, last, (keeps, backward) = graph.nodes[run[0]], run[-1], modes[run[0]]
            inputs = list[InputEdge]()
            for producer in first.inputs:
                edge, given, streams = Edge(producer, first.name), self.messages.inputs, self.messages.streams
                count = given if producer == INPUT else len(streams[producer])
                inputs.append(InputEdge(edge, count, self._activation_from(producer, modes) == edge))
            yield Segment(
                nodes=tuple(run),
                kind=first.kind,
                keeps=keeps,
                backward=backward,
                inputs=tuple(inputs),
                outputs=tuple(Edge(last, reader) for reader in graph.consumers(last)),
                activation_from=self._activation_from(last, modes),
            )

    def _activation_from(self, name: str, modes: Mapping[str, Mode]) -> Edge | None:
        """Return the edge whose backward message carries the output of a node that reconstructs: to the first consumer that keeps it exactly, or else to the first."""
        if name == INPUT or self.graph.nodes[name].kind != "reversible" or modes[name][0] != "nothing":
            return None
        readers = self.graph.consumers(name)
        exact = (one for one in readers if self.graph.nodes[one].kind == "head" or modes[one][0] != "nothing")
        return Edge(name, next(exact, readers[0]))
