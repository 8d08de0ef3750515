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

from petra_graph.compiler.lower import partition, per_block
from petra_graph.compiler.planner_inputs import PlannerInputs, node_seconds, operations
from petra_graph.graph.node_graph import INPUT, NodeGraph
from petra_graph.program.channels import ChannelKey, Edge
from petra_graph.program.method import is_synchronous
from petra_graph.program.node_costs import Work
from petra_graph.program.schedule import depths
from petra_graph.program.simulation import StageSeconds
from petra_graph.program.stage_program import Placement, Segment, StageProgram
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
        schedule, k = self.inputs.schedule, self.inputs.accumulation
        if isinstance(schedule, tuple):
            depth = schedule[max(-1 - distance, -len(schedule))]
        else:
            (depth,) = depths("1f1b" if schedule == "auto" else schedule, [distance], k)
        return (min(depth, k), 0) if self.inputs.method.flush == "window" else (depth, -(-(depth - 1) // k))


def node_table(inputs: PlannerInputs) -> NodeTable:
    """Return the table of a network, from the programs of a stage a node, and from those at a depth of 1."""
    stages, schedule = partition(inputs.graph, per_block(inputs.graph), ["alone"]), inputs.schedule
    alone = inputs.programs(stages, "1f1b" if schedule == "auto" or isinstance(schedule, tuple) else schedule)
    undelayed = inputs.programs(stages, "sequential")
    position = {name: place for place, name in enumerate(inputs.graph.order)}
    # Undelayed nodes keep all graphs that they are to keep, so their messages are the smallest.
    size = {one.key: one.training.payload_bytes for program in undelayed for one in program.channels}
    return NodeTable(
        inputs=inputs,
        seconds=_seconds(inputs, alone, undelayed),
        messages=[
            Message(position[a], position[b], *(size[ChannelKey(Edge(a, b), one)] for one in ("forward", "backward")))
            for a, b in inputs.graph.digraph.edges
        ],
        nodes=_bytes(inputs, [program.segments[0] for program in alone], position),
    )


def _seconds(
    inputs: PlannerInputs, alone: Sequence[StageProgram], undelayed: Sequence[StageProgram]
) -> list[NodeSeconds]:
    """Return the seconds of every node on every device.

    They follow from the time model's own seconds of a stage, which are a sum over its nodes and a part that every stage has. A stage
    reads the samples once, however many of its nodes do.
    """
    k, open_depths = inputs.accumulation, inputs.schedule == "auto" or isinstance(inputs.schedule, tuple)
    reader = next(one.index for one in alone if any(edge.producer == INPUT for edge in one.receives))
    inner, current = (
        [
            evolve(one, receives=tuple(edge for edge in one.receives if edge.producer == INPUT) * (one.index == reader))
            for one in some
        ]
        for some in (alone, undelayed)
    )
    found: dict[Hashable, NodeSeconds] = {}
    for device in inputs.devices:
        if (kind := inputs.kind_of(device)) in found:
            continue

        def seconds(program: StageProgram, name: str = device.name) -> StageSeconds:
            return inputs.seconds(evolve(program, device=name))

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


def _bytes(inputs: PlannerInputs, segments: Sequence[Segment], position: Mapping[str, int]) -> list[NodeBytes]:
    stores_input = {one.nodes[0] for one in segments if one.kind == "buffered" and one.keeps == "input"}
    delayed, found = not is_synchronous(inputs.schedule, inputs.method.flush), []
    for segment in segments:
        name = segment.nodes[0]
        node, read = inputs.costs.nodes[name], inputs.graph.nodes[name].inputs
        one_reader = len(read) == 1 and read[0] != INPUT and inputs.graph.consumers(read[0]) == (name,)
        done = operations(segment, delayed=delayed)
        passes = (node.work[operation].working_bytes for operation in (*done["forward"], *done["backward"]))
        buffer, version = _buffer_and_version(inputs, segment, name)
        found.append(
            NodeBytes(
                resident=node.parameter_bytes + node.statistics_bytes + node.gradient_bytes + node.optimizer_bytes,
                buffer=buffer,
                version=version,
                working=max(node.work["update"].working_bytes, max(passes) + sum(node.input_bytes)),
                joins=position[read[0]] if one_reader and {read[0], name} <= stores_input else None,
            )
        )
    return found


def _buffer_and_version(inputs: PlannerInputs, segment: Segment, name: str) -> tuple[int, int]:
    """Return the bytes that a node stores for each micro-batch in flight, and those of one more version of its parameters: an older one, or one for a delay."""
    node = inputs.costs.nodes[name]
    if segment.kind == "head":
        return 0, 0
    for_delay = node.work.get("predict") or node.work.get("estimate") or Work()
    version = node.parameter_bytes if segment.backward == "stored" else for_delay.kept_bytes
    match segment.keeps:
        case "nothing":
            return 0, version
        case "input" if any(entry.edge.producer == INPUT for entry in segment.inputs):
            return sum(inputs.costs.sample_bytes), version
        case "input":
            return int(sum(node.input_bytes) * inputs.transport.buffer), version
        case "graph":
            return sum(node.input_bytes) + node.work["record"].kept_bytes, version


def kept_by_kind(graph: NodeGraph, reversible: Keeps = "nothing", buffered: BufferedKeeps = "input") -> KeepsByNode:
    """Return the same for all nodes of a kind; by default what holds least beside the work."""
    own: Mapping[Kind, Keeps] = {"reversible": reversible, "buffered": buffered}
    return {name: own[graph.nodes[name].kind] for name in graph.order if name != graph.head}


def choices_by_kind(graph: NodeGraph) -> list[KeepsByNode]:
    """Return all that the nodes of each kind may keep, the least first."""
    return [kept_by_kind(graph, *keeps) for keeps in product(get_args(Keeps), get_args(BufferedKeeps))]


def fill_memory(inputs: PlannerInputs, placement: Placement) -> KeepsByNode:
    """Return what the nodes of these stages keep if what saves most seconds for its bytes comes first, as long as it fits."""
    costs: dict[tuple[str, Keeps], tuple[float, float]] = {}
    """What each node takes with all that it may keep: seconds of a micro-batch, and bytes of all in flight, about."""
    for choice in choices_by_kind(inputs.graph):
        for program in inputs.placed(evolve(placement, kept=choice)):
            seconds, k = inputs.clocks[program.device].longer, inputs.accumulation
            for segment in program.segments:
                for name in segment.nodes if segment.kind != "head" else ():
                    spent = node_seconds(program, segment, name, seconds)
                    buffer, version = _buffer_and_version(inputs, segment, name)
                    costs[name, segment.keeps] = (
                        spent.forward + spent.backward + spent.update / k,
                        program.depth * (buffer + (version / k if program.delayed else 0)),
                    )

    kept = kept_by_kind(inputs.graph)
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
