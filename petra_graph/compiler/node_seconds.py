"""The seconds that nodes add to their device's tick: those of their operations, with their share of an update.

They follow from the time model's own seconds of a stage, which are a sum over its nodes and a part that every stage
has, whatever its nodes: the latency of the all-reduce between replicas.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from attrs import evolve, frozen

from petra_graph.compiler.listed_stages import partition, per_block
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.compiler.simulator.pipeline import MessageBytes, StageSeconds
from petra_graph.graph.node_graph import INPUT
from petra_graph.program.channels import Edge
from petra_graph.program.device_types import Device
from petra_graph.program.stage_program import StageProgram
from petra_graph.spec.model import ScheduleName


@frozen(kw_only=True)
class NodeSeconds:
    """Seconds of a micro-batch on one device; tuples are in the order of the graph's nodes."""

    inner: tuple[float, ...]
    """In a stage before the last, as deep as its distance."""
    undelayed: tuple[float, ...]
    """In a stage before the last, whose parameters are never stale: its depth is 1."""
    last: tuple[float, ...]
    """In the last stage, whose parameters are never stale, and which may keep graphs."""
    forward: tuple[float, ...]
    """Of the forward alone, in whichever stage it takes less."""
    backward: tuple[float, ...]
    """Of the backward alone, in whichever stage it takes less."""
    update: tuple[float, ...]
    """A micro-batch's share of the update alone, in whichever stage it takes less."""
    stage: float
    """Of a stage without nodes."""

    @property
    def before_last(self) -> tuple[float, ...]:
        """In a stage before the last, at whichever depth takes less."""
        return tuple(map(min, self.inner, self.undelayed))

    @property
    def least(self) -> tuple[float, ...]:
        """In whichever stage takes less."""
        return tuple(map(min, self.before_last, self.last))


def device_kind(inputs: PlannerInputs, device: Device) -> Hashable:
    """Return what devices of one kind have in common: any can take the place of any other."""
    return inputs.clocks[device.name], device.link, device.network, device.machine, device.memory_bytes


def schedule_name(inputs: PlannerInputs) -> ScheduleName:
    """Return the schedule that decides depths by distance; 1f1b where depths are listed or still to be found."""
    schedule = inputs.schedule
    return "1f1b" if schedule == "auto" or isinstance(schedule, tuple) else schedule


@frozen(kw_only=True)
class NodeTable:
    """A network node by node, on its devices: what its partition problems are made of."""

    programs: tuple[StageProgram, ...]
    """Of each node as a stage of its own, in the order of the graph's nodes."""
    messages: Mapping[Edge, MessageBytes]
    """Of each edge, as between stages."""
    seconds: Mapping[Hashable, NodeSeconds]
    """On each kind of device."""

    def on(self, inputs: PlannerInputs) -> tuple[NodeSeconds, ...]:
        """Return the seconds on every device."""
        return tuple(self.seconds[device_kind(inputs, device)] for device in inputs.devices)


def node_table(inputs: PlannerInputs) -> NodeTable:
    stages = partition(inputs.graph, per_block(inputs.graph), ["alone"])
    programs, undelayed = (inputs.programs(stages, schedule) for schedule in (schedule_name(inputs), "sequential"))
    seconds = _node_seconds(inputs, programs, undelayed)
    # Undelayed nodes keep all graphs that they are to keep, so their messages are the smallest.
    return NodeTable(programs=programs, messages=inputs.channel_bytes(undelayed), seconds=seconds)


def _node_seconds(
    inputs: PlannerInputs, alone: Sequence[StageProgram], at_once: Sequence[StageProgram]
) -> Mapping[Hashable, NodeSeconds]:
    """Return the seconds of every node on each kind of device; `at_once` are the programs `alone`, at a depth of 1."""
    programs = [evolve(program, receives=_samples(program)) for program in alone]
    first_reader = next((place for place, program in enumerate(programs) if program.receives), None)
    programs = [  # A stage reads the samples once, however many of its nodes do.
        program if place == first_reader else evolve(program, receives=()) for place, program in enumerate(programs)
    ]
    undelayed = [
        evolve(program, depth=1, segments=one.segments) for program, one in zip(programs, at_once, strict=True)
    ]
    ends = [_with_graphs(program) if inputs.last_stage_keeps_graph else program for program in undelayed]
    found: dict[Hashable, NodeSeconds] = {}
    for device in inputs.devices:
        if (kind := device_kind(inputs, device)) not in found:
            empty = evolve(programs[0], segments=(), receives=(), device=device.name)
            inner, current, last = (
                [inputs.seconds(evolve(program, device=device.name)) for program in some]
                for some in (programs, undelayed, ends)
            )
            stage = inputs.seconds(empty).update / inputs.accumulation
            found[kind] = NodeSeconds(
                inner=tuple(_all(one, inputs.accumulation) - stage for one in inner),
                undelayed=tuple(_all(one, inputs.accumulation) - stage for one in current),
                last=tuple(_all(one, inputs.accumulation) - stage for one in last),
                forward=tuple(min(one.forward for one in each) for each in zip(inner, current, last, strict=True)),
                backward=tuple(min(one.backward for one in each) for each in zip(inner, current, last, strict=True)),
                update=tuple(
                    min(one.update for one in each) / inputs.accumulation - stage
                    for each in zip(inner, current, last, strict=True)
                ),
                stage=stage,
            )
    return found


def _samples(program: StageProgram) -> tuple[Edge, ...]:
    return tuple(edge for edge in program.receives if edge.producer == INPUT)


def _with_graphs(program: StageProgram) -> StageProgram:
    segments = (
        segment if segment.kind == "head" else evolve(segment, keeps="graph", backward="current")
        for segment in program.segments
    )
    return evolve(program, segments=tuple(segments))


def _all(seconds: StageSeconds, accumulation: int) -> float:
    return seconds.forward + seconds.backward + seconds.update / accumulation
