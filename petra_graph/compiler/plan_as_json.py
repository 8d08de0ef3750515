"""The prediction of a placement as the JSON document whose keys `petra_graph.program.plan_document` describes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from petra_graph.compiler.durations import flops, node_flops, node_seconds
from petra_graph.compiler.memory_and_time import Prediction
from petra_graph.compiler.simulator.steady_state import staleness
from petra_graph.graph.node_graph import INPUT
from petra_graph.measure.node_shapes import NodeShapes
from petra_graph.program.channels import ChannelKey, Edge
from petra_graph.program.device_types import Device
from petra_graph.program.plan_document import VERSION, Document
from petra_graph.program.stage_bytes import StageBytes
from petra_graph.spec.model import Spec


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
        with_timeline: list the first operations one by one; there are many.
    """
    inputs = prediction.inputs
    schedule = prediction.placement.schedule
    stages = list(_stages(prediction))
    paper = prediction.paper
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
        "paper_accounting": {**attrs.asdict(paper), "total": paper.total},
        "timing": _timing(prediction),
        "run": _run(prediction, spec.run.epochs, micro_batches),
        "devices": list(_devices(prediction)),
        "nodes": list(_nodes(prediction, shapes)),
        "edges": list(_edges(prediction)),
        "timeline": [event._asdict() for event in prediction.timeline().events] if with_timeline else [],
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
        "speedup_over_reversible_backprop": prediction.speedup,
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
