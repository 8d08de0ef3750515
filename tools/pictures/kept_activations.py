"""The activations that two stages keep between forwards and backwards, under 1F1B and under PETRA: simulated, not drawn.

    1F1B    the forward's graph waits for the backward
    PETRA   the backward reconstructs inputs from outputs; only the input images of the first stage wait

The operations and their times are the simulator's, the bytes are the memory model's, of the network in `two_stages.toml`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

from petra_graph.compiler.memory.pipeline_memory import PipelineMemory
from petra_graph.compiler.memory_and_time import Prediction
from petra_graph.compiler.simulator.simulation import Event, simulate
from petra_graph.planning.plan_spec import Planner
from petra_graph.planning.predict_plan import Plan

SPECIFICATION = Path(__file__).with_name("two_stages.toml")


@frozen(kw_only=True)
class KeptActivations:
    """What a stage keeps for one backward."""

    stage: int
    micro_batch: int
    start: float
    """Seconds; the end of the forward."""
    end: float
    """Seconds; the end of the backward."""
    bytes: int


@frozen(kw_only=True)
class Message:
    """A message between two stages."""

    sent: Event
    received: Event
    bytes: int


@frozen(kw_only=True)
class SimulatedTraining:
    """Some micro-batches under one method."""

    method: str
    events: tuple[Event, ...]
    kept: tuple[KeptActivations, ...]
    messages: tuple[Message, ...]
    most_kept: int
    """Bytes, in the stage that keeps most."""
    source: str
    """The network, the devices and the micro-batch."""


def simulated_training(method: str, micro_batches: int) -> SimulatedTraining:
    """Simulate the network of the picture.

    Args:
        method: `petra` or `1f1b-flush`.
        micro_batches: between the start and the drain.
    """
    plan = Planner(str(SPECIFICATION), [f"method.name={method}"]).plan()
    found = plan.prediction
    events = simulate(found.pipeline.with_capacity(found.capacity), micro_batches).events
    held = list(_held(found, events))
    return SimulatedTraining(
        method=method,
        events=events,
        kept=tuple(_kept(events, held)),
        messages=tuple(_messages(found, events)),
        most_kept=max(held),
        source=_source(plan),
    )


def _held(prediction: Prediction, events: tuple[Event, ...]) -> Iterator[int]:
    """Yield the bytes that wait for a backward, in each event's stage after it."""
    pipeline = PipelineMemory(prediction.programs, prediction.inputs.costs, prediction.inputs.transport)
    for event in events:
        pipeline.perform(event.stage, event.action)
        held = pipeline.stages[event.stage].live.now()
        yield held.input_buffer + held.graphs


def _kept(events: tuple[Event, ...], held: list[int]) -> Iterator[KeptActivations]:
    """Yield what each forward added to its stage's bytes, until the backward of the same micro-batch."""
    backward_of = {(event.stage, event.micro_batch): event for event in events if event.verb == "backward"}
    before = dict.fromkeys((event.stage for event in events), 0)
    for event, now in zip(events, held, strict=True):
        if event.verb == "forward" and now > before[event.stage]:
            yield KeptActivations(
                stage=event.stage,
                micro_batch=event.micro_batch,
                start=event.end,
                end=backward_of[event.stage, event.micro_batch].end,
                bytes=now - before[event.stage],
            )
        before[event.stage] = now


def _messages(prediction: Prediction, events: tuple[Event, ...]) -> Iterator[Message]:
    event_of = {(event.stage, event.verb, event.micro_batch): event for event in events}
    for key, channel in prediction.pipeline.channels.items():
        size = getattr(prediction.channel_bytes[key.edge], key.direction)
        for event in events:
            if (event.stage, event.verb) == (channel.sender, key.direction):
                received = event_of[channel.receiver, key.direction, event.micro_batch]
                yield Message(sent=event, received=received, bytes=size)


def _source(plan: Plan) -> str:
    inputs = plan.prediction.inputs
    blocks = sum(node.kind == "reversible" for node in inputs.graph.nodes.values())
    (device,) = {device.type.name for device in inputs.devices}
    return f"{blocks} reversible blocks on {len(inputs.devices)} {device}, micro-batches of {inputs.costs.micro_batch}"
