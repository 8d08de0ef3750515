"""Everything that a plan follows from but the placement: network, costs, method, devices.

graph, costs, method, schedule    the operations of every node
devices, clocks, links            where the operations run, and their seconds there
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

from attrs import evolve, frozen

from petra_graph.compiler.durations import HostAndDevice, OperationSeconds, ahead, estimated, profiled, stage_seconds
from petra_graph.compiler.lower import Lowering
from petra_graph.compiler.memory import StageBytes, device_bytes, device_memory
from petra_graph.compiler.simulation import BothWays, Pipeline, StageSeconds, pipeline
from petra_graph.compiler.stage_memory import EncodedShare
from petra_graph.graph.node_graph import INPUT
from petra_graph.program.channels import ChannelKey, Edge
from petra_graph.program.device_types import CUBLAS_BYTES, MACHINE_DEVICES, Device, Link
from petra_graph.program.message_layout import ITEM_BYTES, encoded_dtype
from petra_graph.program.node_costs import CostTable, Operation, Profile
from petra_graph.program.placement import Placement
from petra_graph.program.schedule import Policy
from petra_graph.program.stage_program import StageProgram
from petra_graph.spec.model import PrecisionSpec, Products, RequestedSchedule


@frozen(kw_only=True)
class PlannerInputs(Lowering):
    """What placement and prediction are computed from."""

    costs: CostTable
    schedule: RequestedSchedule
    transport: EncodedShare
    devices: tuple[Device, ...]
    policy: Policy = "arrival"
    """The order in which the stages of a device take turns."""
    clocks: Mapping[str, OperationSeconds]
    """Each device's, by its name."""
    profile: Profile | None = None
    """The source of the clocks; None: data sheets."""
    replicas: int = 1
    """Pipelines that exchange gradients before each update."""
    together: tuple[tuple[str, ...], ...] = ()
    """Sets of nodes that every cut has in one stage, in topological order."""
    outside_seconds: float = 0.0
    """Of a micro-batch, where its samples enter: loading, with what a profile counts to no stage."""

    @property
    def most_stages(self) -> int:
        return self.graph.most_stages(self.together)

    @property
    def limits(self) -> list[int | None]:
        return [device.memory_bytes for device in self.devices]

    def kind_of(self, device: Device) -> Hashable:
        """Return what devices of one kind have in common: any can take the place of any other."""
        return self.clocks[device.name], device.link, device.network, device.machine, device.memory_bytes

    @property
    def alike(self) -> bool:
        """Whether the devices differ by their machines alone, if at all."""
        return len({self.kind_of(evolve(device, machine=0)) for device in self.devices}) == 1

    def device_memory(self, programs: Sequence[StageProgram]) -> Mapping[str, StageBytes]:
        """Return the memory of every device that hosts a stage, at the device's largest moment."""
        return device_memory(programs, self.costs, policy=self.policy, transport=self.transport)

    def held_bytes(self, placement: Placement) -> list[int]:
        """Return the most bytes that every device would hold, by the memory model."""
        programs = self.placed(placement)
        held = device_bytes(programs, self.costs, policy=self.policy, transport=self.transport)
        return [held.get(device.name, 0) for device in self.devices]

    def fits(self, placement: Placement) -> bool:
        """Whether the devices' memory suffices for a placement."""
        if not any(self.limits):
            return True
        held = zip(self.held_bytes(placement), self.limits, strict=True)
        return all(limit is None or used <= limit for used, limit in held)

    def seconds(self, program: StageProgram) -> StageSeconds:
        seconds = stage_seconds(program, self.clocks[program.device])
        enters = any(edge.producer == INPUT for edge in program.receives)
        exchange = self._exchange_seconds(program)
        return evolve(
            seconds,
            forward=seconds.forward + (self.outside_seconds if enters else 0.0),
            update=seconds.update + exchange,
            exchange=exchange,
        )

    def _exchange_seconds(self, program: StageProgram) -> float:
        """Return the seconds in which replicas sum a stage's gradients, none of them hidden behind computation.

        The link between replicas is that of one machine where it has room for all of them.
        """
        device = next(device for device in self.devices if device.name == program.device)
        link = device.network or device.link if self.replicas > 1 and self.crosses_machines else device.link
        size = sum(self.costs.nodes[name].gradient_bytes for name in program.nodes)
        return all_reduce_seconds(link, size, self.replicas)

    @property
    def machine_devices(self) -> int:
        return MACHINE_DEVICES[self.devices[0].type.kind]

    @property
    def crosses_machines(self) -> bool:
        """Whether the devices of all replicas are in more than one machine."""
        apart = len({device.machine for device in self.devices}) > 1
        return apart or (self.replicas > 1 and len(self.devices) * self.replicas > self.machine_devices)

    def channel_bytes(self, programs: Sequence[StageProgram]) -> Mapping[Edge, BothWays]:
        size = {channel.key: channel.training.payload_bytes for program in programs for channel in program.channels}
        edges = dict.fromkeys(key.edge for key in size)
        return {
            edge: BothWays(forward=size[ChannelKey(edge, "forward")], backward=size[ChannelKey(edge, "backward")])
            for edge in edges
        }

    def paced(self, programs: Sequence[StageProgram]) -> list[StageSeconds]:
        """Return the seconds of all stages together: of one device that does everything, those that it takes if its host runs ahead."""
        alone = {program.device for program in programs}
        share = ahead(programs, self.clocks[alone.pop()], self.outside_seconds) if len(alone) == 1 else 1.0
        return [self.seconds(program).scaled(share) for program in programs]

    def pipeline(self, programs: Sequence[StageProgram]) -> Pipeline:
        return pipeline(
            programs,
            self.paced(programs),
            channel_bytes=self.channel_bytes(programs),
            links=dict(self._links(programs)),
            policy=self.policy,
        )

    def _links(self, programs: Sequence[StageProgram]) -> Iterator[tuple[tuple[str, str], Link]]:
        """Yield the link between each two devices that exchange messages."""
        device = {device.name: device for device in self.devices}
        home = {name: program.device for program in programs for name in program.nodes}
        for program in programs:
            for edge in program.sends:
                ends = home[edge.producer], home[edge.consumer]
                if ends[0] != ends[1]:
                    yield ends, device[ends[0]].link_to(device[ends[1]])


def all_reduce_seconds(link: Link, size: int, replicas: int) -> float:
    """Return the seconds of a ring all-reduce of `size` bytes.

    Each replica sends 2 (R - 1) / R of them in 2 (R - 1) messages (Patarasuk and Yuan 2009,
    https://doi.org/10.1016/j.jpdc.2008.09.002).
    """
    return 2 * (replicas - 1) * (link.latency_seconds + size / replicas / link.bytes_per_second)


def clocks_of(
    devices: Sequence[Device], costs: CostTable, products: Products, profile: Profile | None
) -> Mapping[str, OperationSeconds]:
    """Return each device's clock, one for all of a type; a profile is of the first device's type, and scaled for the others."""
    first = devices[0].type.flops_per_second(products)
    clocks = {
        kind: _own_updates(
            estimated(costs, kind, products)
            if profile is None
            else profiled(profile, first / kind.flops_per_second(products)),
            costs,
        )
        for kind in {device.type for device in devices}
    }
    return {device.name: clocks[device.type] for device in devices}


def _own_updates(clock: OperationSeconds, costs: CostTable) -> OperationSeconds:
    """Return a clock by which a parameter that several nodes of a stage share is stepped once."""
    if all(node.updated == 1 for node in costs.nodes.values()):
        return clock
    if isinstance(clock, HostAndDevice):
        return evolve(clock, host=_own_updates(clock.host, costs), device=_own_updates(clock.device, costs))

    def seconds(node: str, operation: Operation) -> float:
        return (costs.nodes[node].updated if operation == "update" else 1.0) * clock(node, operation)

    return seconds


def transport_of(precision: PrecisionSpec, kind: str) -> EncodedShare:
    """Return the share of its own bytes that a tensor has in a buffer and in a channel.

    Args:
        kind: kind of the devices, "cpu" or "cuda".
    """
    own = "float64" if precision.compute == "float64" else "float32"
    return EncodedShare(
        buffer=ITEM_BYTES[encoded_dtype(precision.buffer_dtype, own)] / ITEM_BYTES[own],
        channel=ITEM_BYTES[encoded_dtype(precision.channel_dtype, own)] / ITEM_BYTES[own],
        targets=0.0 if kind == "cuda" else 1.0,
        libraries=CUBLAS_BYTES if kind == "cuda" else 0,
    )
