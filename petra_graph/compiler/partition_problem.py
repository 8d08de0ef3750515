"""The partition problem of a network: each node an item with its seconds and bytes, each edge with its messages' bytes.

An item's bytes are those that do not depend on its stage. The memory model, which goes through the stages' own
operations, has the last word (`compiler.placement_search`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from attrs import evolve

from petra_graph.compiler.durations import OperationSeconds, backward_operations, forward_operations
from petra_graph.compiler.listed_stages import partition, per_block
from petra_graph.compiler.partitioner.problem import (
    DepthRule,
    DeviceBudget,
    Item,
    ItemEdge,
    Objective,
    PartitionProblem,
)
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.graph.node_graph import INPUT
from petra_graph.program.channels import NEIGHBOUR_CAPACITY, Edge
from petra_graph.program.costs import NodeCost, Operation
from petra_graph.program.method import is_synchronous
from petra_graph.program.stage_program import Segment
from petra_graph.spec.model import ScheduleName


def partition_problem(
    setting: PlannerInputs,
    stages: int | None,
    objective: Objective,
    memory_bytes: Sequence[float | None],
    keeping_graphs: Collection[str] = (),
) -> PartitionProblem:
    """Return the partition problem of a network.

    Args:
        setting: network, method and devices.
        stages: number of stages to make; None: one a device.
        objective: the quantity to make least.
        memory_bytes: each device's limit.
        keeping_graphs: nodes of the last stage, where that keeps graphs.
    """
    graph = setting.graph
    per_node = partition(graph, per_block(graph), ["alone"])
    programs = setting.programs(per_node, _schedule_name(setting))
    segments = {segment.nodes[0]: segment for program in programs for segment in program.segments}
    for name in keeping_graphs:
        if segments[name].kind != "head":
            segments[name] = evolve(segments[name], keeps="graph", backward="current")
    sizes = setting.channel_bytes(programs)
    clocks = [setting.clocks[device.name] for device in setting.devices]
    work = [sum(_seconds(segment, setting, clock) for segment in segments.values()) for clock in clocks]
    return PartitionProblem(
        items=[_item(segments[name], setting, clocks[0]) for name in graph.order],
        edges=[
            ItemEdge(
                producer=producer,
                consumer=consumer,
                forward_bytes=sizes[Edge(producer, consumer)].forward,
                backward_bytes=sizes[Edge(producer, consumer)].backward,
            )
            for producer, consumer in graph.digraph.edges
        ],
        devices=[
            DeviceBudget(
                name=device.name,
                speed=work[0] / own if own else 1.0,
                memory_bytes=None if limit is None else int(limit),
            )
            for device, own, limit in zip(setting.devices, work, memory_bytes, strict=True)
        ],
        stages=stages,
        objective=objective,
        link_bytes_per_second=min(device.link.bytes_per_second for device in setting.devices),
        channel_capacity=NEIGHBOUR_CAPACITY,
        depth_rule=DepthRule(
            schedule=_schedule_name(setting), accumulation=setting.accumulation, flush=setting.method.flush
        ),
    )


def _schedule_name(setting: PlannerInputs) -> ScheduleName:
    """Return the schedule that decides depths by distance; 1f1b where depths are listed or still to be found."""
    schedule = setting.schedule
    return "1f1b" if schedule == "auto" or isinstance(schedule, tuple) else schedule


def _item(segment: Segment, setting: PlannerInputs, clock: OperationSeconds) -> Item:
    node = setting.costs.nodes[segment.nodes[0]]
    return Item(
        name=segment.nodes[0],
        seconds=_seconds(segment, setting, clock),
        resident_bytes=node.parameter_bytes + node.statistics_bytes + node.gradient_bytes + node.optimizer_bytes,
        buffer_bytes=_buffer(segment, node, setting),
        version_bytes=node.parameter_bytes if segment.backward == "stored" and segment.kind != "head" else 0,
        working_bytes=max(
            node.work["update"].working_bytes,
            *(
                node.work[operation].working_bytes + sum(node.input_bytes)
                for operation in _operations(segment, setting)
            ),
        ),
        joins=segment.kind == "buffered" and segment.keeps == "input",
    )


def _seconds(segment: Segment, setting: PlannerInputs, clock: OperationSeconds) -> float:
    name = segment.nodes[0]
    work = sum(clock(name, operation) for operation in _operations(segment, setting))
    entering = setting.outside_seconds if INPUT in setting.graph.nodes[name].inputs else 0.0
    return work + clock(name, "update") / setting.accumulation + entering


def _operations(segment: Segment, setting: PlannerInputs) -> tuple[Operation, ...]:
    delayed = not is_synchronous(setting.schedule, setting.method.flush)
    return (*forward_operations(segment), *backward_operations(segment, delayed=delayed))


def _buffer(segment: Segment, node: NodeCost, setting: PlannerInputs) -> int:
    """Return the bytes that the segment's node stores for each micro-batch in flight."""
    if segment.kind == "head" or segment.keeps == "nothing":
        return 0
    samples = any(entry.edge.producer == INPUT for entry in segment.inputs)
    share = setting.transport.sample_buffer if samples else setting.transport.buffer
    if segment.keeps == "input":
        size = setting.costs.sample_bytes if samples else sum(node.input_bytes)
        return int(size * share)
    return sum(node.input_bytes) + node.work["record"].kept_bytes
