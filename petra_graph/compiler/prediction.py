"""A placement with its memory and its times, and the same as the JSON document whose keys `petra_graph.program.plan_document` describes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import attrs
from attrs import define, evolve

from petra_graph.compiler.durations import flops, node_flops, node_seconds
from petra_graph.compiler.memory import StageBytes, stage_memory, summed
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.compiler.simulation import MessageBytes, Pipeline, StageSeconds
from petra_graph.compiler.timing import Timeline, Timing, simulate, staleness, tick, timing
from petra_graph.graph.node_graph import INPUT
from petra_graph.measure.node_shapes import NodeShapes
from petra_graph.program.channels import Carrier, ChannelKey, Edge
from petra_graph.program.device_types import Device
from petra_graph.program.node_costs import CostTable, NodeCost
from petra_graph.program.placement import Placement
from petra_graph.program.plan_document import VERSION, Document
from petra_graph.program.stage_program import StageProgram
from petra_graph.spec.model import Spec

TICKS_SHOWN = 6
"""Ticks of the steady state in a timeline."""
_FLOAT32 = 4
"""Bytes of a value."""


@define(kw_only=True, frozen=True, eq=False, slots=False)
class Prediction:
    """A placement with its memory and its times; each model runs when its result is first used."""

    inputs: PlannerInputs
    placement: Placement

    @cached_property
    def programs(self) -> tuple[StageProgram, ...]:
        return self.inputs.placed(self.placement)

    @cached_property
    def memory(self) -> tuple[StageBytes, ...]:
        """The bytes of every stage, at its largest moment."""
        return stage_memory(self.programs, self.inputs.costs, transport=self.inputs.transport)

    @cached_property
    def device_memory(self) -> Mapping[str, StageBytes]:
        if len({program.device for program in self.programs}) == len(self.programs):
            libraries = self.inputs.transport.libraries
            return {
                program.device: evolve(held, working=held.working + libraries)
                for program, held in zip(self.programs, self.memory, strict=True)
            }
        return self.inputs.device_memory(self.programs)

    @property
    def spare_bytes(self) -> Mapping[str, int | None]:
        """The bytes left on each device, below 0 where it holds more than it may; None where its memory is not known."""
        rooms = {device.name: device.memory_bytes or device.type.memory_bytes for device in self.inputs.devices}
        return {
            name: None if (room := rooms[name]) is None else room - held.total
            for name, held in self.device_memory.items()
        }

    @cached_property
    def total_memory(self) -> StageBytes:
        return summed(self.device_memory.values())

    @cached_property
    def paper(self) -> Mapping[str, int]:
        return paper_accounting(self.programs, self.inputs.costs)

    @cached_property
    def seconds(self) -> tuple[StageSeconds, ...]:
        return tuple(self.inputs.paced(self.programs))

    @cached_property
    def channel_bytes(self) -> Mapping[Edge, MessageBytes]:
        return self.inputs.channel_bytes(self.programs)

    @cached_property
    def carriers(self) -> Mapping[Edge, Carrier]:
        return self.inputs.carriers(self.programs)

    @cached_property
    def pipeline(self) -> Pipeline:
        """The stages as the time model needs them."""
        return self.inputs.pipeline(self.programs)

    @cached_property
    def capacity(self) -> Mapping[ChannelKey, int]:
        """The capacity of every channel between two devices."""
        apart = {key for key, timing in self.pipeline.channels.items() if timing.link is not None}
        found = {channel.key: channel.capacity for program in self.programs for channel in program.channels}
        return {key: count for key, count in found.items() if key in apart}

    @cached_property
    def timing(self) -> Timing:
        return timing(self.pipeline)

    @cached_property
    def exposed_links(self) -> float:
        """The share of the devices' time by which messages on links lengthen the steady state."""
        timing, pipeline = self.timing, self.pipeline
        if not timing.tick_seconds or not any(channel.seconds for channel in pipeline.channels.values()):
            return 0.0
        return max(0.0, 1 - tick(pipeline.with_free_links()).seconds / timing.tick_seconds)

    def timeline(self) -> Timeline:
        """Return the operations from the start to some ticks after the pipeline is full."""
        depth = max(program.depth for program in self.programs)
        windows = -(-(depth + TICKS_SHOWN) // self.inputs.accumulation)
        return simulate(self.pipeline, windows * self.inputs.accumulation)


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


def document(
    spec: Spec,
    prediction: Prediction,
    shapes: Mapping[str, NodeShapes],
    *,
    trained: int,
    micro_batches: int | None,
    delay_aware: Iterable[str],
    assumptions: Iterable[str],
    certainty: Document,
    warnings: Iterable[str],
    speedup: float | None,
    speedup_over: str | None,
    other_uses: int | None,
    with_timeline: bool,
) -> Document:
    """Return a prediction as JSON.

    Args:
        trained: number of values of trained parameters.
        micro_batches: of an epoch; None: not known.
        delay_aware: the plugins that know the delay of their stage.
        assumptions: further sentences, about the sources of the numbers.
        certainty: how sure the numbers are.
        warnings: sentences about keys to change.
        speedup, speedup_over: and what it is over; None: not known.
        other_uses: of the devices, which were looked at.
        with_timeline: list the first operations one by one; there are many.
    """
    inputs = prediction.inputs
    schedule = prediction.placement.schedule
    stages = list(_stages(prediction))
    return {
        "version": VERSION,
        "name": spec.name,
        "method": inputs.method.name,
        "schedule": list(schedule) if isinstance(schedule, tuple) else schedule,
        "accumulation": inputs.accumulation,
        "replicas": inputs.replicas,
        "micro_batch": inputs.costs.micro_batch,
        "samples_per_update": inputs.costs.micro_batch * inputs.accumulation * inputs.replicas,
        "stages": stages,
        "totals": {
            "parameters": sum(stage["parameters"] for stage in stages),
            "trained": trained,
            "bytes": _bytes(prediction.total_memory),
        },
        "paper_accounting": prediction.paper,
        "timing": {**_timing(prediction), "speedup": speedup, "speedup_over": speedup_over},
        "run": _run(prediction, spec.run.epochs, micro_batches),
        "devices": list(_devices(prediction)),
        "nodes": list(_nodes(prediction, shapes)),
        "edges": list(_edges(prediction)),
        "timeline": [event._asdict() for event in prediction.timeline().events] if with_timeline else [],
        "other_uses": other_uses,
        "delay_aware": list(delay_aware),
        "certainty": certainty,
        "assumptions": list(assumptions),
        "warnings": list(warnings),
    }


def _stages(prediction: Prediction) -> Iterator[Document]:
    costs, sizes = prediction.inputs.costs, prediction.channel_bytes
    for program, stage, memory, seconds, modelled in zip(
        prediction.programs,
        prediction.placement.stages,
        prediction.memory,
        prediction.seconds,
        prediction.pipeline.stages,
        strict=True,
    ):
        kinds = {segment.kind for segment in program.segments}
        yield {
            "index": program.index,
            "nodes": list(program.nodes),
            "kind": next(kind for kind in ("head", "buffered", "reversible") if kind in kinds),
            "device": program.device,
            "depth": program.depth,
            "distance": stage.distance,
            "staleness": staleness(modelled),
            "parameters": sum(costs.nodes[name].parameters for name in program.nodes),
            "flops": flops(program, costs),
            "seconds": attrs.asdict(seconds),
            "bytes": _bytes(memory),
            "channel_bytes": {  # that it sends for a micro-batch
                "forward": sum(sizes[edge].forward for edge in program.sends),
                "backward": sum(sizes[edge].backward for edge in program.receives if edge.producer != INPUT),
            },
        }


def _bytes(memory: StageBytes) -> dict[str, int]:
    return {**attrs.asdict(memory), "total": memory.total}


def _timing(prediction: Prediction) -> Document:
    timing = prediction.timing
    return {
        "tick_seconds": timing.tick_seconds,
        "samples_per_second": timing.samples_per_second(
            prediction.inputs.costs.micro_batch, prediction.inputs.replicas
        ),
        "bubble_fraction": timing.bubble_fraction,
        "exposed_communication": {"all_reduce": timing.exchange_fraction, "links": prediction.exposed_links},
        "utilisation": [timing.utilisation[device.name] for device in _used(prediction)],
        "fill_seconds": timing.fill_seconds,
        "drain_seconds": timing.drain_seconds,
        "overhead_seconds": timing.overhead_seconds,
        "outside_seconds": prediction.inputs.outside_seconds,
        "exact": timing.exact,
        "limited_by": list(timing.limited_by),
    }


def _run(prediction: Prediction, epochs: int, micro_batches: int | None) -> Document:
    """Return what the run takes; the pipeline drains at the end of each epoch."""
    seconds = None
    if micro_batches is not None:
        seconds = micro_batches * prediction.timing.tick_seconds + max(0.0, prediction.timing.overhead_seconds)
    return {
        "epochs": epochs,
        "micro_batches_per_epoch": micro_batches,
        "epoch_seconds": seconds,
        "seconds": None if seconds is None else epochs * seconds,
    }


def _used(prediction: Prediction) -> Sequence[Device]:
    return [device for device in prediction.inputs.devices if device.name in prediction.timing.utilisation]


def _devices(prediction: Prediction) -> Iterator[Document]:
    tick = prediction.timing.tick_seconds
    for device in _used(prediction):
        used, waiting = prediction.timing.utilisation[device.name], prediction.timing.exchange[device.name]
        yield {
            "name": device.name,
            "type": device.type.name,
            "stages": [program.index for program in prediction.programs if program.device == device.name],
            "memory_bytes": device.memory_bytes,
            "capacity_bytes": device.type.memory_bytes,
            "bytes": _bytes(prediction.device_memory[device.name]),
            "busy_seconds_per_tick": used * tick,
            "utilisation": used,
            "exchange_seconds_per_tick": waiting * tick,
        }


def _nodes(prediction: Prediction, shapes: Mapping[str, NodeShapes]) -> Iterator[Document]:
    inputs = prediction.inputs
    for program in prediction.programs:
        for segment in program.segments:
            for name in segment.nodes:
                node = inputs.graph.nodes[name]
                seconds = node_seconds(program, segment, name, inputs.clocks[program.device])
                yield {
                    "name": name,
                    "kind": node.kind,
                    "block": node.block,
                    "stage": program.index,
                    "parameters": shapes[name].parameters,
                    "keeps": None if node.kind == "head" else segment.keeps,
                    "inputs": [producer for producer in node.inputs if producer != INPUT],
                    "outputs": [list(shape) for shape in shapes[name].outputs],
                    "flops": node_flops(program, segment, name, inputs.costs),
                    "seconds": attrs.asdict(seconds),
                }


def _edges(prediction: Prediction) -> Iterator[Document]:
    home = {name: program for program in prediction.programs for name in program.nodes}
    nodes = prediction.inputs.costs.nodes
    for producer, consumer in prediction.inputs.graph.digraph.edges:
        edge = Edge(producer, consumer)
        sizes = prediction.channel_bytes.get(edge)
        inside = sum(nodes[producer].output_bytes)
        yield {
            "producer": producer,
            "consumer": consumer,
            "forward_bytes": sizes.forward if sizes else inside,
            "backward_bytes": sizes.backward if sizes else inside,
            "cut": home[producer] is not home[consumer],
            "capacity": prediction.capacity.get(ChannelKey(edge, "forward")),
            "transport": prediction.carriers.get(edge),
        }
