"""From compiled programs and what is known of their costs to the time model's pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from petra_graph.compiler.simulator.model import (
    DeviceExecution,
    MessageBytes,
    Pipeline,
    StageSeconds,
    TimedEdge,
    TimedStage,
)
from petra_graph.errors import Problem, SpecError
from petra_graph.graph.node_graph import INPUT
from petra_graph.program.channels import ChannelKey, Edge
from petra_graph.program.devices import Link
from petra_graph.program.stage_program import StageProgram


def pipeline(
    programs: Sequence[StageProgram],
    seconds: Sequence[StageSeconds],
    *,
    channel_bytes: Mapping[Edge, MessageBytes] | None = None,
    placement: Sequence[str] | None = None,
    devices: Mapping[str, DeviceExecution] | None = None,
    link: Link | None = None,
    links: Mapping[tuple[str, str], Link] | None = None,
    slots: Mapping[ChannelKey, int] | None = None,
    blocking_sends: bool = False,
) -> Pipeline:
    """Return what the time model needs of compiled programs.

    Args:
        programs: the stages, in topological order.
        seconds: what each stage's operations take on its device.
        channel_bytes: sizes of messages; an edge that is not named carries nothing.
        placement: each stage's device by any name; default: the programs' own.
        devices: how devices execute, by name; default: one operation at a time.
        link: between any two devices; default: no latency, no limit.
        links: by names of sender and receiver, where `link` does not hold.
        slots: places for messages, by channel; default: as many as are asked for.
        blocking_sends: a sender waits until its message has arrived.

    Raises:
        SpecError: a count of slots is below 1.
    """
    problems = [
        Problem(message=f"a wire needs a slot at least (got {count} for {channel})", hint="give it 1 or more")
        for channel, count in (slots or {}).items()
        if count < 1
    ]
    if problems:
        raise SpecError(problems)
    sizes = channel_bytes or {}
    places = placement or [program.device for program in programs]
    sender = {edge: program.index for program in programs for edge in program.sends}
    return Pipeline(
        stages=tuple(
            TimedStage(
                index=program.index,
                device=device,
                depth=program.depth,
                accumulation=program.accumulation,
                flush=program.flush,
                seconds=each,
            )
            for program, each, device in zip(programs, seconds, places, strict=True)
        ),
        wires=tuple(
            TimedEdge(edge=edge, producer=sender[edge], consumer=program.index, bytes=sizes.get(edge, MessageBytes()))
            for program in programs
            for edge in program.receives
            if edge.producer != INPUT
        ),
        devices=devices or {},
        link=link or Link(),
        links=links or {},
        slots=slots or {},
        blocking_sends=blocking_sends,
    )
