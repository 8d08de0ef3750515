"""Everything that a plan follows from: network, costs, method, devices. Where the cuts are is what remains to be decided.

graph, costs, method, schedule    what is to be done
devices, clocks, links            where, and how long that takes there
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import evolve, frozen

from petra_graph.compiler.durations import OperationSeconds, stage_seconds
from petra_graph.compiler.lower import MessageTypes, lower
from petra_graph.compiler.memory.segment_memory import EncodedShare
from petra_graph.compiler.simulator.pipeline import MessageBytes, Pipeline, StageSeconds, pipeline
from petra_graph.graph.node_graph import INPUT, NodeGraph
from petra_graph.program.channels import ChannelKey, Edge
from petra_graph.program.costs import CostTable
from petra_graph.program.devices import Device, Link
from petra_graph.program.method import Method
from petra_graph.program.partition import Partition
from petra_graph.program.stage_program import StageProgram
from petra_graph.spec.model import AskedSchedule, Schedule


@frozen(kw_only=True)
class PlannerInputs:
    """What is planned for."""

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
    overlap: bool = False
    """Devices run forwards and backwards on two streams."""
    replicas: int = 1
    """Pipelines that exchange gradients before each update."""
    outside_seconds: float = 0.0
    """Of a micro-batch, where its samples enter: loading, and what no stage accounts for."""

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
        """Return what a stage's operations take on its device."""
        seconds = stage_seconds(program, self.clocks[program.device])
        enters = any(edge.producer == INPUT for edge in program.receives)
        return evolve(
            seconds,
            forward=seconds.forward + (self.outside_seconds if enters else 0.0),
            update=seconds.update + self._exchange_seconds(program),
        )

    def _exchange_seconds(self, program: StageProgram) -> float:
        """Return what replicas take to sum a stage's gradients, none of it hidden behind computation."""
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
        """Return what the time model needs of the stages."""
        return pipeline(
            programs,
            [self.seconds(program) for program in programs],
            channel_bytes=self.channel_bytes(programs),
            links=dict(self._links(programs)),
            overlap=self.overlap,
        )

    def _links(self, programs: Sequence[StageProgram]) -> Iterator[tuple[tuple[str, str], Link]]:
        """Yield what devices that exchange messages have between them: the slower of their two links."""
        link = {device.name: device.link for device in self.devices}
        home = {name: program.device for program in programs for name in program.nodes}
        for program in programs:
            for edge in program.sends:
                ends = home[edge.producer], home[edge.consumer]
                if ends[0] != ends[1]:
                    yield ends, slower(link[ends[0]], link[ends[1]])


def all_reduce_seconds(link: Link, size: int, replicas: int) -> float:
    """Return how long a ring all-reduce of `size` bytes takes.

    Each replica sends 2 (R - 1) / R of them in 2 (R - 1) messages (Patarasuk and Yuan 2009,
    https://doi.org/10.1016/j.jpdc.2008.09.002).
    """
    return 2 * (replicas - 1) * (link.latency_seconds + size / replicas / link.bytes_per_second)


def slower(one: Link, other: Link) -> Link:
    """Return what two devices have between them whose links differ."""
    return Link(
        latency_seconds=max(one.latency_seconds, other.latency_seconds),
        bytes_per_second=min(one.bytes_per_second, other.bytes_per_second),
    )
