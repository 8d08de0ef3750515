"""The partition problem of a network: each node an item with its seconds and bytes, each edge with its messages' bytes.

An item's bytes are those that do not depend on its stage. The memory model, which goes through the stages' own
operations, has the last word (`compiler.placement_search`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf

from attrs import evolve

from petra_graph.compiler.durations import backward_operations, forward_operations
from petra_graph.compiler.node_seconds import NodeSeconds, NodeTable, schedule_name
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
from petra_graph.program.method import is_synchronous
from petra_graph.program.node_costs import NodeCost, Operation
from petra_graph.program.stage_program import Segment


def partition_problem(
    setting: PlannerInputs,
    table: NodeTable,
    stages: int | None,
    objective: Objective,
    memory_bytes: Sequence[float | None],
    *,
    last_stage: Collection[str] = (),
) -> PartitionProblem:
    """Return the partition problem of a network.

    Args:
        setting: network, method and devices.
        stages: number of stages to make; None: one a device.
        last_stage: nodes of the last stage, where they are known.
    """
    graph = setting.graph
    segments = {segment.nodes[0]: segment for program in table.programs for segment in program.segments}
    for name in last_stage if setting.last_stage_keeps_graph else ():
        if segments[name].kind != "head":
            segments[name] = evolve(segments[name], keeps="graph", backward="current")
    return PartitionProblem(
        items=[_item(segments[name], setting) for name in graph.order],
        edges=_messages(setting, table),
        devices=[
            evolve(budget, name=device.name, memory_bytes=None if limit is None else int(limit))
            for device, budget, limit in zip(
                setting.devices, _budgets(setting, table.on(setting), stages, last_stage), memory_bytes, strict=True
            )
        ],
        stages=stages,
        objective=objective,
        link_bytes_per_second=min(device.link.bytes_per_second for device in setting.devices),
        channel_capacity=NEIGHBOUR_CAPACITY,
        depth_rule=DepthRule(
            schedule=schedule_name(setting),
            accumulation=setting.accumulation,
            flush=setting.method.flush,
            most_versions=1 if _corrects(table, setting) else inf,
        ),
    )


def bound_problem(
    setting: PlannerInputs,
    table: NodeTable,
    stages: int,
    devices: Sequence[NodeSeconds],
    last_stage: Collection[str] = (),
) -> PartitionProblem:
    """Return a problem whose seconds the time model is never below, for bounds of ticks.

    Args:
        devices: the seconds of the devices that are used, at most as many as stages.
        last_stage: nodes of the last stage, where they are known.
    """
    return PartitionProblem(
        items=[Item(name=name) for name in setting.graph.order],
        edges=least_messages(setting, table),
        devices=_budgets(setting, devices, stages, last_stage, least=True),
        stages=stages,
        link_bytes_per_second=max(device.link.bytes_per_second for device in setting.devices),
    )


def least_messages(setting: PlannerInputs, table: NodeTable) -> list[ItemEdge]:
    """Return the edges with the bytes that their messages have in every cut: which of several consumers sends the activation varies."""
    graph = setting.graph
    return [
        evolve(edge, backward_bytes=edge.backward_bytes if len(graph.consumers(edge.producer)) == 1 else 0)
        for edge in _messages(setting, table)
    ]


def _messages(setting: PlannerInputs, table: NodeTable) -> list[ItemEdge]:
    sizes = ((edge, table.messages[Edge(*edge)]) for edge in setting.graph.digraph.edges)
    return [
        ItemEdge(producer=producer, consumer=consumer, forward_bytes=size.forward, backward_bytes=size.backward)
        for (producer, consumer), size in sizes
    ]


def _budgets(
    setting: PlannerInputs,
    devices: Sequence[NodeSeconds],
    stages: int | None,
    last_stage: Collection[str],
    *,
    least: bool = False,
) -> list[DeviceBudget]:
    """Return devices with their seconds.

    Where each device hosts one stage, the last device hosts the last stage. With `least`, a node whose stage is unknown
    takes the least that it takes in any.
    """
    found = []
    unsure = least and (setting.schedule == "auto" or isinstance(setting.schedule, tuple))
    alone = stages is None or stages == len(devices)
    for place, seconds in enumerate(devices, start=1):
        inner = seconds.before_last if unsure else seconds.inner
        if last_stage:
            own = tuple(
                last if name in last_stage else before
                for name, before, last in zip(setting.graph.order, inner, seconds.last, strict=True)
            )
        elif place < len(devices):
            own = inner
        else:
            own = seconds.last if alone else seconds.least if least else seconds.inner
        found.append(DeviceBudget(name=str(place), item_seconds=own, stage_seconds=seconds.stage))
    return found


def _item(segment: Segment, setting: PlannerInputs) -> Item:
    node = setting.costs.nodes[segment.nodes[0]]
    return Item(
        name=segment.nodes[0],
        resident_bytes=node.parameter_bytes + node.statistics_bytes + node.gradient_bytes + node.optimizer_bytes,
        buffer_bytes=buffer_bytes(segment, node, setting),
        version_bytes=version_bytes(segment, node),
        working_bytes=max(
            node.work["update"].working_bytes,
            *(
                node.work[operation].working_bytes + sum(node.input_bytes)
                for operation in _operations(segment, setting)
            ),
        ),
        joins=segment.kind == "buffered" and segment.keeps == "input",
    )


def version_bytes(segment: Segment, node: NodeCost) -> int:
    """Return the bytes of one more version of the node's parameters: an older one, or one for a delay."""
    if segment.kind == "head":
        return 0
    if segment.backward == "stored":
        return node.parameter_bytes
    return node.for_delay.kept_bytes


def _corrects(table: NodeTable, setting: PlannerInputs) -> bool:
    """Whether the versions that stages keep are those for a delay; those of a method that stores older ones are not."""
    stored = any(segment.backward == "stored" for program in table.programs for segment in program.segments)
    return not stored and any(node.for_delay.kept_bytes for node in setting.costs.nodes.values())


def _operations(segment: Segment, setting: PlannerInputs) -> tuple[Operation, ...]:
    delayed = not is_synchronous(setting.schedule, setting.method.flush)
    return (*forward_operations(segment), *backward_operations(segment, delayed=delayed))


def buffer_bytes(segment: Segment, node: NodeCost, setting: PlannerInputs) -> int:
    """Return the bytes that the segment's node stores for each micro-batch in flight."""
    if segment.kind == "head" or segment.keeps == "nothing":
        return 0
    samples = any(entry.edge.producer == INPUT for entry in segment.inputs)
    share = setting.transport.sample_buffer if samples else setting.transport.buffer
    if segment.keeps == "input":
        size = setting.costs.sample_bytes if samples else sum(node.input_bytes)
        return int(size * share)
    return sum(node.input_bytes) + node.work["record"].kept_bytes
