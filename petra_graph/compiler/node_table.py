"""The network as a table, node by node: what a search for stages adds up; and what each node keeps, where the specification leaves that open.

Decision: nodes of delayed stages keep no graphs, since these would need the parameters of their forwards, unless the specification allows it;
so all choices have the parameters that the method has (`Method.mode`).
"""

from collections.abc import Hashable, Sequence
from itertools import product
from typing import get_args

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from petra_graph.compiler.lower import partition, per_block
from petra_graph.compiler.planner_inputs import PlannerInputs, node_seconds
from petra_graph.graph.node_graph import INPUT, NodeGraph
from petra_graph.program.channels import ChannelKey, Edge
from petra_graph.program.node_costs import Work
from petra_graph.program.schedule import depths
from petra_graph.program.stage_program import Placement, Segment
from petra_graph.spec.model import BufferedKeeps, Keeps, KeepsByNode, Schedule


@frozen(kw_only=True, eq=False)
class NodeTable:
    """A network node by node, on its devices; nodes are in the order of the graph, by positions there."""

    inputs: PlannerInputs
    seconds: NDArray[np.float64]
    """Of a micro-batch, by device and node, twice: of nodes before the last stage, and of those in it, whose parameters are never stale."""
    stage_seconds: NDArray[np.float64]
    """By device, of a stage without nodes: the latency of the all-reduce between replicas, as a share of a micro-batch."""
    edges: NDArray[np.int64]
    """The producer and the consumer of each."""
    edge_bytes: NDArray[np.int64]
    """What crosses each edge if it is between two stages, forwards and backwards."""
    held: NDArray[np.int64]
    """Bytes of nodes on their devices, about, in rows: parameters with gradients and optimizer state; what is stored for each micro-batch in flight;
    one more version of the parameters, an older one or one for a delay; and what the largest operation needs."""

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
    graph, k = inputs.graph, inputs.accumulation
    stages = partition(graph, per_block(graph), ["alone"])
    schedule: Schedule = "1f1b" if isinstance(inputs.schedule, tuple) or inputs.schedule == "auto" else inputs.schedule
    alone, undelayed = inputs.programs(stages, schedule), inputs.programs(stages, "sequential")
    position = {name: place for place, name in enumerate(graph.order)}

    # A stage's own seconds are a sum over its nodes, and a part that every stage has.
    seconds: dict[Hashable, tuple[Sequence[float], Sequence[float], float]] = {}
    for device in inputs.devices:
        if (kind := inputs.kind_of(device)) in seconds:
            continue
        empty = inputs.seconds(evolve(alone[0], segments=(), receives=(), device=device.name)).update / k
        each = [[inputs.seconds(evolve(one, device=device.name)) for one in some] for some in (alone, undelayed)]
        delayed, at_once = ([one.forward + one.backward + one.update / k - empty for one in some] for some in each)
        # Where depths are still to be found, a stage may turn out not to be delayed.
        seconds[kind] = list(map(min, delayed, at_once)) if inputs.schedule != schedule else delayed, at_once, empty
    inner, last, stage = zip(*(seconds[inputs.kind_of(device)] for device in inputs.devices), strict=True)

    # Undelayed nodes keep all graphs that they are to keep, so their messages are the smallest.
    size = {one.key: one.training.payload_bytes for program in undelayed for one in program.channels}
    edges = [Edge(*edge) for edge in graph.digraph.edges]
    positions = [[position[name] for name in edge] for edge in edges]
    sizes = [[size[ChannelKey(edge, way)] for way in ("forward", "backward")] for edge in edges]
    held = list[tuple[int, ...]]()
    for program in alone:
        (segment,), (name,) = program.segments, program.nodes
        node = inputs.costs.nodes[name]
        resident = node.parameter_bytes + node.statistics_bytes + node.gradient_bytes + node.optimizer_bytes
        working = max(one.working_bytes for key, one in node.work.items() if key != "first_update")
        held.append((resident, *_buffer_and_version(inputs, segment, name), working + sum(node.input_bytes)))
    return NodeTable(
        inputs=inputs,
        seconds=np.array([inner, last]),
        stage_seconds=np.array(stage),
        edges=np.array(positions, np.int64).reshape(-1, 2),
        edge_bytes=np.array(sizes, np.int64).reshape(-1, 2),
        held=np.array(held, np.int64).T,
    )


def _buffer_and_version(inputs: PlannerInputs, segment: Segment, name: str) -> tuple[int, int]:
    """Return the bytes that a node stores for each micro-batch in flight, and those of one more version of its parameters."""
    node = inputs.costs.nodes[name]
    if segment.kind == "head":
        return 0, 0
    for_delay = node.work.get("predict") or node.work.get("estimate") or Work()
    version = node.parameter_bytes if segment.backward == "stored" else for_delay.kept_bytes
    if segment.keeps == "nothing":
        return 0, version
    if segment.keeps == "graph":
        return sum(node.input_bytes) + node.work["record"].kept_bytes, version
    if any(entry.edge.producer == INPUT for entry in segment.inputs):
        return sum(inputs.costs.sample_bytes), version
    return int(sum(node.input_bytes) * inputs.transport.buffer), version


# --- what nodes keep ---


def choices_by_kind(graph: NodeGraph) -> list[KeepsByNode]:
    """Return all that the nodes of each kind may keep: the first holds least beside the work, the last takes the least time."""
    kinds = {name: graph.nodes[name].kind for name in graph.order if name != graph.head}
    return [
        {name: reversible if kind == "reversible" else buffered for name, kind in kinds.items()}
        for reversible, buffered in product(get_args(Keeps), get_args(BufferedKeeps))
    ]


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
                    held = program.depth * (buffer + (version / k if program.delayed else 0))
                    costs[name, segment.keeps] = spent.forward + spent.backward + spent.update / k, held

    kept = least = choices_by_kind(inputs.graph)[0]
    if placement.kept and not inputs.fits(evolve(placement, kept=kept)):
        kept = placement.kept

    def worth(choice: tuple[str, Keeps]) -> float:
        """Return the seconds that it saves for a byte."""
        (now, held), (then, more) = costs[choice[0], least[choice[0]]], costs[choice]
        return (now - then) / max(more - held, 1.0)

    for name, keeps in sorted(costs, key=worth, reverse=True):
        other = {**kept, name: keeps}
        if costs[name, keeps][0] < costs[name, kept[name]][0] and inputs.fits(evolve(placement, kept=other)):
            kept = other
    return kept
