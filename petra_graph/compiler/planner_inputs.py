"""Everything that a plan follows from but the placement: network, costs, method, devices.

graph, costs, method, schedule    the operations of every node
devices, clocks, links            where the operations run, and their seconds there
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import evolve, frozen

from petra_graph.compiler.durations import OperationSeconds, estimated, profiled, stage_seconds
from petra_graph.compiler.lower import MessageTypes, lower
from petra_graph.compiler.memory.segment_memory import EncodedShare
from petra_graph.compiler.precision import transport_of
from petra_graph.compiler.profile_check import checked_profile
from petra_graph.compiler.simulator.pipeline import MessageBytes, Pipeline, StageSeconds, pipeline
from petra_graph.graph.node_graph import INPUT, NodeGraph
from petra_graph.program.channels import ChannelKey, Edge
from petra_graph.program.costs import CostTable, Operation, Profile
from petra_graph.program.devices import Device, Link
from petra_graph.program.method import Method
from petra_graph.program.placement import Partition
from petra_graph.program.stage_program import StageProgram
from petra_graph.spec.model import AskedSchedule, PartitionSpec, Schedule, Spec


@frozen(kw_only=True)
class PlannerInputs:
    """What placement and prediction are computed from."""

    graph: NodeGraph
    costs: CostTable
    method: Method
    schedule: AskedSchedule
    accumulation: int
    last_stage_keeps_graph: bool
    messages: MessageTypes
    transport: EncodedShare
    devices: tuple[Device, ...]
    """In the order of the pipeline."""
    clocks: Mapping[str, OperationSeconds]
    """Each device's, by its name."""
    profile: Profile | None = None
    """The source of the clocks; None: data sheets."""
    overlap: bool = False
    """Devices run forwards and backwards on two streams."""
    replicas: int = 1
    """Pipelines that exchange gradients before each update."""
    outside_seconds: float = 0.0
    """Of a micro-batch, where its samples enter: loading, with what a profile counts to no stage."""

    def programs(self, partition: Partition, schedule: Schedule) -> tuple[StageProgram, ...]:
        """Return the stages' programs."""
        return lower(
            self.graph,
            partition,
            method=self.method,
            schedule=schedule,
            accumulation=self.accumulation,
            messages=self.messages,
            last_stage_keeps_graph=self.last_stage_keeps_graph,
        )

    def seconds(self, program: StageProgram) -> StageSeconds:
        """Return the seconds of a stage's operations on its device."""
        seconds = stage_seconds(program, self.clocks[program.device])
        enters = any(edge.producer == INPUT for edge in program.receives)
        return evolve(
            seconds,
            forward=seconds.forward + (self.outside_seconds if enters else 0.0),
            update=seconds.update + self._exchange_seconds(program),
        )

    def _exchange_seconds(self, program: StageProgram) -> float:
        """Return the seconds in which replicas sum a stage's gradients, none of them hidden behind computation."""
        link = next(device.link for device in self.devices if device.name == program.device)
        return all_reduce_seconds(
            link, sum(self.costs.nodes[name].gradient_bytes for name in program.nodes), self.replicas
        )

    def channel_bytes(self, programs: Sequence[StageProgram]) -> Mapping[Edge, MessageBytes]:
        """Return the sizes of messages between stages."""
        size = {channel.key: channel.training.payload_bytes for program in programs for channel in program.channels}
        edges = dict.fromkeys(key.edge for key in size)
        return {
            edge: MessageBytes(forward=size[ChannelKey(edge, "forward")], backward=size[ChannelKey(edge, "backward")])
            for edge in edges
        }

    def pipeline(self, programs: Sequence[StageProgram]) -> Pipeline:
        """Return the stages as the time model needs them."""
        return pipeline(
            programs,
            [self.seconds(program) for program in programs],
            channel_bytes=self.channel_bytes(programs),
            links=dict(self._links(programs)),
            overlap=self.overlap,
        )

    def _links(self, programs: Sequence[StageProgram]) -> Iterator[tuple[tuple[str, str], Link]]:
        """Yield the link between each two devices that exchange messages: the slower of their two links."""
        link = {device.name: device.link for device in self.devices}
        home = {name: program.device for program in programs for name in program.nodes}
        for program in programs:
            for edge in program.sends:
                ends = home[edge.producer], home[edge.consumer]
                if ends[0] != ends[1]:
                    yield ends, slower(link[ends[0]], link[ends[1]])


def planner_inputs(
    spec: Spec,
    graph: NodeGraph,
    method: Method,
    schedule: AskedSchedule,
    *,
    costs: CostTable,
    messages: MessageTypes,
    devices: tuple[Device, ...],
    overlap: bool,
) -> PlannerInputs:
    """Return the inputs of a specification's plan.

    Args:
        spec: the specification.
        graph: its network.
        method: its method, checked.
        schedule: its schedule, checked.
        costs: the costs of every node.
        messages: the layouts of messages between stages.
        devices: in the order of the pipeline.
        overlap: devices run forwards and backwards on two streams.

    Raises:
        SpecError: the profile is of another network, micro-batch or precision, or cannot be read.
    """
    profile = checked_profile(spec, graph, costs, devices[0].type.kind)
    if profile is not None and profile.link is not None:
        devices = tuple(evolve(device, link=_link(spec.partition, device.link, profile.link)) for device in devices)
    return PlannerInputs(
        graph=graph,
        costs=costs,
        method=method,
        schedule=schedule,
        accumulation=spec.method.accumulation,
        last_stage_keeps_graph=spec.method.last_stage == "keep-graph",
        messages=messages,
        transport=transport_of(spec.precision, devices[0].type.kind),
        devices=devices,
        clocks=_clocks(devices, costs, spec.precision.compute, profile),
        profile=profile,
        overlap=overlap,
        replicas=spec.partition.replicas,
        outside_seconds=0.0 if profile is None else profile.outside,
    )


def all_reduce_seconds(link: Link, size: int, replicas: int) -> float:
    """Return the seconds of a ring all-reduce of `size` bytes.

    Each replica sends 2 (R - 1) / R of them in 2 (R - 1) messages (Patarasuk and Yuan 2009,
    https://doi.org/10.1016/j.jpdc.2008.09.002).
    """
    return 2 * (replicas - 1) * (link.latency_seconds + size / replicas / link.bytes_per_second)


def slower(one: Link, other: Link) -> Link:
    """Return the link between two devices whose own links differ."""
    return Link(
        latency_seconds=max(one.latency_seconds, other.latency_seconds),
        bytes_per_second=min(one.bytes_per_second, other.bytes_per_second),
    )


def _link(partition: PartitionSpec, stated: Link, measured: Link) -> Link:
    """Return the measured link, but for the figures that the specification states."""
    return Link(
        latency_seconds=(measured if partition.link_latency is None else stated).latency_seconds,
        bytes_per_second=(measured if partition.link_bandwidth is None else stated).bytes_per_second,
    )


def _clocks(
    devices: Sequence[Device], costs: CostTable, compute: str, profile: Profile | None
) -> Mapping[str, OperationSeconds]:
    """Return each device's clock; a profile is of the first device's type, and is scaled for the others."""
    if profile is None:
        return {device.name: estimated(costs, device.type, compute) for device in devices}
    first = devices[0].type.flops_per_second(compute)
    return {
        device.name: _scaled(profiled(profile), first / device.type.flops_per_second(compute)) for device in devices
    }


def _scaled(clock: OperationSeconds, factor: float) -> OperationSeconds:
    if factor == 1:
        return clock

    def seconds(node: str, operation: Operation) -> float:
        return factor * clock(node, operation)

    return seconds
