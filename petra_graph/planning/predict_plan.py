"""The predict step: memory and speed of a placement, as a plan that people and programs read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs

from petra_graph.compiler.durations import node_flops, node_seconds
from petra_graph.compiler.memory import StageBytes, stage_memory, summed
from petra_graph.compiler.plan import (
    Certainty,
    Exposed,
    Plan,
    PlannedDevice,
    PlannedNode,
    PlannedRun,
    PlannedStage,
    PlannedTiming,
    Totals,
)
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.compiler.simulation import BothWays, Pipeline
from petra_graph.compiler.timing import Event, Timing, simulate, timing
from petra_graph.graph.node_graph import INPUT, distances
from petra_graph.measure.node_shapes import NodeShapes
from petra_graph.measure.without_compiler import uncompiled
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.planning.plan_advice import assumptions, placement_notes, throughput_range, warnings
from petra_graph.planning.shared_across_stages import count_parameters
from petra_graph.plugins.optimizer import asks_for_delay
from petra_graph.program.node_costs import CostTable, NodeCost
from petra_graph.program.placement import Placement
from petra_graph.program.stage_program import Segment, StageProgram

TICKS_SHOWN = 6
"""Ticks of the steady state in a timeline."""
_FLOAT32 = 4
"""Bytes of a value."""


@uncompiled()
def predict(network: MeasuredNetwork, placement: Placement, *, with_timeline: bool = False) -> Plan:
    """Predict a placement: a plan's, or a run's.

    Args:
        with_timeline: list the first operations one by one; there are many.

    Raises:
        SpecError: the profile does not belong to the specification, or a block cannot be run.
    """
    spec, optimizer = network.spec, network.checked.optimizer
    inputs = network.planner_inputs(placement.devices)
    programs = inputs.placed(placement)
    pipeline = inputs.pipeline(programs)
    speed, batch = timing(pipeline), inputs.costs.micro_batch

    held = stage_memory(programs, inputs.costs, transport=inputs.transport)
    nodes = tuple(_nodes(inputs, programs, network.shapes))
    stages = tuple(_stages(inputs, programs, pipeline, held, nodes))
    devices = tuple(_devices(inputs, programs, speed, _device_memory(inputs, programs, held)))
    spare = [device.spare_bytes for device in devices]
    known = [left for left in spare if left is not None]
    throughput = speed.samples_per_second(batch, inputs.replicas)
    slowest, fastest = throughput_range(inputs, spec, throughput)

    many, epoch_seconds = network.micro_batches, None
    if many is not None:  # The pipeline drains at the end of each epoch.
        epoch_seconds = many * speed.tick_seconds + max(0.0, speed.overhead_seconds)
    shown: tuple[Event, ...] = ()
    if with_timeline:
        windows = -(-(max(program.depth for program in programs) + TICKS_SHOWN) // inputs.accumulation)
        shown = simulate(pipeline, windows * inputs.accumulation).events

    plan = Plan(
        name=spec.name,
        method=inputs.method.name,
        schedule=placement.schedule,
        accumulation=inputs.accumulation,
        replicas=inputs.replicas,
        micro_batch=batch,
        samples_per_update=batch * inputs.accumulation * inputs.replicas,
        stages=stages,
        totals=Totals(
            parameters=sum(stage.parameters for stage in stages),
            trained=count_parameters(network.shapes, [stage.nodes for stage in stages])[1],
            bytes=summed(device.bytes for device in devices),
        ),
        paper_accounting=paper_accounting(programs, inputs.costs),
        timing=PlannedTiming(
            tick_seconds=speed.tick_seconds,
            samples_per_second=throughput,
            bubble_fraction=speed.bubble_fraction,
            exposed_communication=Exposed(all_reduce=speed.exchange_fraction, links=speed.exposed_links),
            utilisation=tuple(device.utilisation for device in devices),
            fill_seconds=speed.fill_seconds,
            drain_seconds=speed.drain_seconds,
            overhead_seconds=speed.overhead_seconds,
            outside_seconds=inputs.outside_seconds,
            exact=speed.exact,
        ),
        run=PlannedRun(
            epochs=spec.run.epochs,
            micro_batches_per_epoch=many,
            epoch_seconds=epoch_seconds,
            seconds=None if epoch_seconds is None else spec.run.epochs * epoch_seconds,
        ),
        devices=devices,
        nodes=nodes,
        timeline=shown,
        delay_aware=(str(optimizer.plugin),) * asks_for_delay(optimizer.plugin, optimizer.options),
        certainty=Certainty(
            samples_per_second_low=slowest,
            samples_per_second_high=fastest,
            spare_bytes=min(known) if len(known) == len(spare) else None,
        ),
        notes=tuple(placement_notes(placement, speed)),
        assumptions=tuple(assumptions(inputs, spec, pipeline)),
    )
    return attrs.evolve(plan, warnings=tuple(warnings(plan, inputs, network, programs)))


def _stages(
    inputs: PlannerInputs,
    programs: Sequence[StageProgram],
    pipeline: Pipeline,
    held: Sequence[StageBytes],
    nodes: Sequence[PlannedNode],
) -> Iterator[PlannedStage]:
    sizes, distance, own_nodes = inputs.channel_bytes(programs), distances(pipeline.graph), iter(nodes)
    for program, timed, own in zip(programs, pipeline.stages, held, strict=True):
        kinds = {segment.kind for segment in program.segments}
        work = [next(own_nodes).flops for _ in program.nodes]
        yield PlannedStage(
            index=program.index,
            nodes=program.nodes,
            kind=next(kind for kind in ("head", "buffered", "reversible") if kind in kinds),
            device=program.device,
            depth=program.depth,
            distance=distance[program.index],
            staleness=program.staleness,
            parameters=sum(inputs.costs.nodes[name].parameters for name in program.nodes),
            flops=BothWays(forward=sum(one.forward for one in work), backward=sum(one.backward for one in work)),
            seconds=timed.seconds,
            bytes=own,
            channel_bytes=BothWays(
                forward=sum(sizes[edge].forward for edge in program.sends),
                backward=sum(sizes[edge].backward for edge in program.receives if edge.producer != INPUT),
            ),
        )


def _device_memory(
    inputs: PlannerInputs, programs: Sequence[StageProgram], held: Sequence[StageBytes]
) -> Mapping[str, StageBytes]:
    """Return what each device holds at its largest moment: of one stage, that and the libraries."""
    if len({program.device for program in programs}) < len(programs):
        return inputs.device_memory(programs)
    libraries = inputs.transport.libraries
    return {
        program.device: attrs.evolve(own, working=own.working + libraries)
        for program, own in zip(programs, held, strict=True)
    }


def _devices(
    inputs: PlannerInputs, programs: Sequence[StageProgram], speed: Timing, held: Mapping[str, StageBytes]
) -> Iterator[PlannedDevice]:
    for device in inputs.devices:
        if device.name in held:
            used, waiting = speed.utilisation[device.name], speed.exchange[device.name]
            yield PlannedDevice(
                name=device.name,
                type=device.type.name,
                stages=tuple(program.index for program in programs if program.device == device.name),
                memory_bytes=device.memory_bytes,
                capacity_bytes=device.type.memory_bytes,
                bytes=held[device.name],
                busy_seconds_per_tick=used * speed.tick_seconds,
                utilisation=used,
                exchange_seconds_per_tick=waiting * speed.tick_seconds,
            )


def _nodes(
    inputs: PlannerInputs, programs: Sequence[StageProgram], shapes: Mapping[str, NodeShapes]
) -> Iterator[PlannedNode]:
    for program in programs:
        for segment in program.segments:
            yield from (_node(inputs, program, segment, name, shapes[name]) for name in segment.nodes)


def _node(inputs: PlannerInputs, program: StageProgram, segment: Segment, name: str, shapes: NodeShapes) -> PlannedNode:
    node = inputs.graph.nodes[name]
    return PlannedNode(
        name=name,
        kind=node.kind,
        block=node.block,
        stage=program.index,
        parameters=shapes.parameters,
        keeps=None if node.kind == "head" else segment.keeps,
        inputs=tuple(producer for producer in node.inputs if producer != INPUT),
        outputs=tuple(tuple(shape) for shape in shapes.outputs),
        flops=node_flops(program, segment, name, inputs.costs),
        seconds=node_seconds(program, segment, name, inputs.clocks[program.device]),
    )


def paper_accounting(programs: Sequence[StageProgram], costs: CostTable) -> Mapping[str, int]:
    """Count the bytes of all stages, by part, as table 3 of the PETRA paper does, to be shown beside the true ones.

    For a node with P parameters, R running statistics and an input of S values, in a stage of staleness tau:

        model             P + R + S
        input buffer      S tau             if the node keeps its input
        parameter buffer  P ceil(tau / k)   if the backward uses the forward's parameters

    All in float32. S counts one stream of a reversible node and of the head, and all of a buffered node, so a reversible node's
    stored input is under-counted by half. The first node's input buffer is counted in the rows where reversible nodes keep
    their inputs, and left out of the others.
    """
    model = input_buffer = parameter_buffer = 0
    segments = [segment for program in programs for segment in program.segments]
    kinds = {segment.keeps for segment in segments if segment.kind == "reversible"}
    samples_count = kinds != {"nothing"}
    for program in programs:
        staleness = program.depth - 1
        for segment in program.segments:
            for name in segment.nodes:
                node = costs.nodes[name]
                model += node.parameters + node.statistics + _paper_inputs(node)
                if segment.backward == "stored" and segment.kind != "head":
                    parameter_buffer += node.parameters * -(-staleness // program.accumulation)
            first = costs.nodes[segment.nodes[0]]
            reads_samples = any(entry.edge.producer == INPUT for entry in segment.inputs)
            if segment.kind != "head" and segment.keeps != "nothing" and (samples_count or not reads_samples):
                input_buffer += _paper_inputs(first) * staleness
    parts = {"model": model, "input_buffer": input_buffer, "parameter_buffer": parameter_buffer}
    parts["total"] = sum(parts.values())
    return {part: _FLOAT32 * values for part, values in parts.items()}


def _paper_inputs(node: NodeCost) -> int:
    """Return the number of input values that count for a node."""
    return sum(node.input_values) if node.kind == "buffered" else node.input_values[0]
