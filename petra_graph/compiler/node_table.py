"""The network as a table, node by node: what a search for stages adds up.

    seconds      of a micro-batch on each kind of device: those of a node's operations, with its share of an update
    messages     the bytes that cross each edge, if a cut goes through it
    bytes        those that do not depend on a node's stage, and those that grow with the micro-batches in flight there

The two models, which go through the operations of whole stages, have the last word (`compiler.placement_search`).

From the same numbers follows what each node keeps for its backward, where the specification leaves that open: as much as memory allows,
where that saves most seconds.

Decision: nodes of delayed stages keep no graphs, since these would need the parameters of their forwards, unless the specification allows it;
so all choices have the parameters that the method has (`Method.mode`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import NamedTuple, get_args

from attrs import evolve, frozen

from petra_graph.compiler.durations import node_seconds, operations
from petra_graph.compiler.lower import partition, per_block
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.compiler.simulation import StageSeconds
from petra_graph.graph.node_graph import INPUT, NodeGraph
from petra_graph.program.channels import Edge
from petra_graph.program.method import is_synchronous
from petra_graph.program.node_costs import NodeCost
from petra_graph.program.placement import Placement
from petra_graph.program.schedule import depths
from petra_graph.program.stage_program import Segment, StageProgram
from petra_graph.spec.model import BufferedKeeps, Keeps, KeepsByNode, Kind


class NodeSeconds(NamedTuple):
    """Seconds of a micro-batch on one device; tuples are in the order of the graph's nodes."""

    inner: tuple[float, ...]
    """Of nodes before the last stage."""
    last: tuple[float, ...]
    """Of nodes in the last stage, whose parameters are never stale."""
    passes: tuple[float, ...]
    """Of nodes' forwards and backwards alone, in whichever stage they take less."""
    stage: float
    """Of a stage without nodes: the latency of the all-reduce between replicas, as a share of a micro-batch."""


class Message(NamedTuple):
    """What crosses an edge between two stages."""

    producer: int
    """The position of the node in the graph's order."""
    consumer: int
    forward: int
    """Bytes."""
    backward: int
    """Bytes."""


class NodeBytes(NamedTuple):
    """What a node holds on its device."""

    resident: int
    """Parameters, gradients and optimizer state."""
    buffer: int
    """For each micro-batch in flight."""
    version: int
    """One more version of the parameters."""
    working: int
    """The largest operation's own."""
    joins: int | None
    """The position of the node right behind which it stores nothing, since one stored input serves both."""


@frozen(kw_only=True, eq=False, slots=False)
class NodeTable:
    """A network node by node, on its devices."""

    inputs: PlannerInputs
    seconds: Sequence[NodeSeconds]
    """On every device."""
    messages: Sequence[Message]
    nodes: Sequence[NodeBytes]

    @cached_property
    def is_chain(self) -> bool:
        """Whether every node reads the one before."""
        return {(place, place + 1) for place in range(len(self.nodes) - 1)} <= {one[:2] for one in self.messages}

    def in_flight(self, distance: int) -> tuple[int, int]:
        """Return the micro-batches in flight in a stage, about, and the further versions of its parameters."""
        inputs, k = self.inputs, self.inputs.accumulation
        if isinstance(inputs.schedule, tuple):
            depth = inputs.schedule[max(-1 - distance, -len(inputs.schedule))]
        else:
            (depth,) = depths("1f1b" if inputs.schedule == "auto" else inputs.schedule, [distance], k)
        if inputs.method.flush == "window":
            return min(depth, k), 0
        return depth, -(-(depth - 1) // k)


def node_table(inputs: PlannerInputs) -> NodeTable:
    stages = partition(inputs.graph, per_block(inputs.graph), ["alone"])
    schedule = inputs.schedule
    open_depths = schedule == "auto" or isinstance(schedule, tuple)
    depths = "1f1b" if schedule == "auto" or isinstance(schedule, tuple) else schedule
    programs, undelayed = inputs.programs(stages, depths), inputs.programs(stages, "sequential")
    position = {name: place for place, name in enumerate(inputs.graph.order)}
    # Undelayed nodes keep all graphs that they are to keep, so their messages are the smallest.
    sizes = inputs.channel_bytes(undelayed)
    return NodeTable(
        inputs=inputs,
        seconds=_seconds(inputs, programs, undelayed, open_depths=open_depths),
        messages=[
            Message(position[a], position[b], sizes[Edge(a, b)].forward, sizes[Edge(a, b)].backward)
            for a, b in inputs.graph.digraph.edges
        ],
        nodes=_nodes(inputs, [program.segments[0] for program in programs], position),
    )


def _seconds(
    inputs: PlannerInputs, alone: Sequence[StageProgram], undelayed: Sequence[StageProgram], *, open_depths: bool
) -> list[NodeSeconds]:
    """Return the seconds of every node on every device, from its program `alone` in a stage, and from that at a depth of 1.

    They follow from the time model's own seconds of a stage, which are a sum over its nodes and a part that every stage has. A stage
    reads the samples once, however many of its nodes do.
    """
    reader = next(
        place for place, program in enumerate(alone) if any(edge.producer == INPUT for edge in program.receives)
    )
    samples = [
        tuple(edge for edge in program.receives if edge.producer == INPUT) if place == reader else ()
        for place, program in enumerate(alone)
    ]
    inner, current = (
        [evolve(program, receives=own) for program, own in zip(some, samples, strict=True)]
        for some in (alone, undelayed)
    )
    found: dict[Hashable, NodeSeconds] = {}
    for device in inputs.devices:
        if (kind := inputs.kind_of(device)) in found:
            continue

        def seconds(program: StageProgram, name: str = device.name) -> StageSeconds:
            return inputs.seconds(evolve(program, device=name))

        k = inputs.accumulation
        stage = seconds(evolve(inner[0], segments=(), receives=())).update / k
        each = [[seconds(program) for program in some] for some in (inner, current)]
        delayed, at_once = ([one.forward + one.backward + one.update / k - stage for one in some] for some in each)
        found[kind] = NodeSeconds(
            # Where depths are still to be found, a stage may turn out not to be delayed.
            inner=tuple(map(min, delayed, at_once) if open_depths else delayed),
            last=tuple(at_once),
            passes=tuple(min(one.forward + one.backward for one in some) for some in zip(*each, strict=True)),
            stage=stage,
        )
    return [found[inputs.kind_of(device)] for device in inputs.devices]


def _nodes(inputs: PlannerInputs, segments: Sequence[Segment], position: Mapping[str, int]) -> list[NodeBytes]:
    stores_input = {one.nodes[0] for one in segments if one.kind == "buffered" and one.keeps == "input"}
    delayed = not is_synchronous(inputs.schedule, inputs.method.flush)
    found = []
    for segment in segments:
        name = segment.nodes[0]
        node, read = inputs.costs.nodes[name], inputs.graph.nodes[name].inputs
        one_reader = len(read) == 1 and read[0] != INPUT and inputs.graph.consumers(read[0]) == (name,)
        done = operations(segment, delayed=delayed)
        found.append(
            NodeBytes(
                resident=node.parameter_bytes + node.statistics_bytes + node.gradient_bytes + node.optimizer_bytes,
                buffer=_buffer_bytes(segment, node, inputs),
                version=_version_bytes(segment, node),
                working=max(
                    node.work["update"].working_bytes,
                    *(
                        node.work[operation].working_bytes + sum(node.input_bytes)
                        for operation in (*done["forward"], *done["backward"])
                    ),
                ),
                joins=position[read[0]] if one_reader and {read[0], name} <= stores_input else None,
            )
        )
    return found


def _version_bytes(segment: Segment, node: NodeCost) -> int:
    """Return the bytes of one more version of the node's parameters: an older one, or one for a delay."""
    if segment.kind == "head":
        return 0
    if segment.backward == "stored":
        return node.parameter_bytes
    return node.for_delay.kept_bytes


def _buffer_bytes(segment: Segment, node: NodeCost, inputs: PlannerInputs) -> int:
    """Return the bytes that the segment's node stores for each micro-batch in flight."""
    if segment.kind == "head" or segment.keeps == "nothing":
        return 0
    samples = any(entry.edge.producer == INPUT for entry in segment.inputs)
    if segment.keeps == "input":
        return sum(inputs.costs.sample_bytes) if samples else int(sum(node.input_bytes) * inputs.transport.buffer)
    return sum(node.input_bytes) + node.work["record"].kept_bytes


def kept_by_kind(graph: NodeGraph, reversible: Keeps = "nothing", buffered: BufferedKeeps = "input") -> KeepsByNode:
    """Return the same for all nodes of a kind; by default what holds least beside the work."""
    own: Mapping[Kind, Keeps] = {"reversible": reversible, "buffered": buffered}
    return {name: own[graph.nodes[name].kind] for name in graph.order if name != graph.head}


def choices_by_kind(graph: NodeGraph) -> list[KeepsByNode]:
    """Return all that the nodes of each kind may keep, the least first."""
    return [kept_by_kind(graph, *keeps) for keeps in product(get_args(Keeps), get_args(BufferedKeeps))]


def fill_memory(inputs: PlannerInputs, placement: Placement) -> KeepsByNode:
    """Return what the nodes of these stages keep if what saves most seconds for its bytes comes first, as long as it fits."""
    costs, kept = _costs(inputs, placement), kept_by_kind(inputs.graph)
    if placement.kept and not inputs.fits(evolve(placement, kept=kept)):
        kept = placement.kept
    left = sorted(costs)
    while left:
        worth = {}
        for name, keeps in left:
            (now, held), (then, more) = costs[name, kept[name]], costs[name, keeps]
            worth[name, keeps] = (now - then) / max(more - held, 1.0), now - then
        name, keeps = max(left, key=worth.__getitem__)
        left.remove((name, keeps))
        other = {**kept, name: keeps}
        if worth[name, keeps][1] > 0 and inputs.fits(evolve(placement, kept=other)):
            kept = other
    return kept


def _costs(inputs: PlannerInputs, placement: Placement) -> Mapping[tuple[str, Keeps], tuple[float, float]]:
    """Return what each node takes with all that it may keep in these stages: seconds of a micro-batch, and bytes of all in flight, about."""
    found = {}
    for kept in choices_by_kind(inputs.graph):
        for program in inputs.placed(evolve(placement, kept=kept)):
            for segment in program.segments:
                for name in segment.nodes if segment.kind != "head" else ():
                    node = inputs.costs.nodes[name]
                    spent = node_seconds(program, segment, name, inputs.clocks[program.device])
                    versions = _version_bytes(segment, node) / inputs.accumulation if program.delayed else 0
                    found[name, segment.keeps] = (
                        spent.forward + spent.backward + spent.update / inputs.accumulation,
                        program.depth * (_buffer_bytes(segment, node, inputs) + versions),
                    )
    return found
