"""Everything that a plan follows from but the placement: network, costs, method, devices; and the seconds and bytes of stages.

The operations of a segment for a micro-batch follow from what it keeps (see `executor.runners`):

    keeps     parameters   forward   backward
    nothing   current      forward   reverse           4 units where a forward is 1 and a backward 2
    nothing   stored       forward   invert, recompute 5
    input     either       forward   recompute         4
    graph     either       record    replay            3
    (head)                 forward_backward            3

Their seconds on a device are its clock's. A GPU works beside its host, which queues operations for it: each takes the larger of their seconds.
"""

from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from math import ceil
from statistics import fmean

from attrs import evolve, frozen

from petra_graph.compiler.lower import Lowering
from petra_graph.compiler.memory import EncodedShare, MemoryModel
from petra_graph.graph.node_graph import INPUT
from petra_graph.program.channels import ChannelKey
from petra_graph.program.device_types import EFFICIENCY, MACHINE_DEVICES, Device, DeviceType
from petra_graph.program.node_costs import CostTable, Operation, Profile, Work
from petra_graph.program.schedule import Policy, Verb
from petra_graph.program.simulation import ChannelTiming, Pipeline, StageSeconds
from petra_graph.program.stage_program import Placement, Segment, StageProgram
from petra_graph.spec.model import Keeps, Products, RequestedSchedule

Seconds = Mapping[str, Mapping[Operation, float]]
"""Of the operations of every node for one micro-batch; what is not there takes nothing."""
_FOR_DELAY: tuple[Operation, ...] = ("predict", "estimate")
"""What an optimizer may make once an update for late passes."""


@frozen(eq=False, slots=False)
class Clock:
    """The seconds of operations on a device, or on a GPU beside a host that queues them."""

    device: Seconds
    host: Seconds | None = None
    host_update: float = 0.0
    """Of a stage's update, however many nodes the stage has: the optimizer steps all of its parameters at once."""

    @cached_property
    def longer(self) -> Seconds:
        """What operations take: the larger of both."""
        if self.host is None:
            return self.device
        return {
            name: {operation: max(one, self.host[name].get(operation, 0.0)) for operation, one in own.items()}
            for name, own in self.device.items()
        }


def estimated(costs: CostTable, device: DeviceType, products: Products) -> Clock:
    """Return the operations' seconds by the data sheet: of arithmetic or memory traffic, whichever takes longer (the roofline of Williams et al. 2009, https://doi.org/10.1145/1498765.1498785), and of the host that dispatches them."""
    rate, bandwidth = EFFICIENCY * device.flops_per_second(products), EFFICIENCY * device.memory_bandwidth
    computing, dispatching, most = dict[str, dict[Operation, float]](), dict[str, dict[Operation, float]](), 0
    for name, cost in costs.nodes.items():
        copy = Work(traffic_bytes=2 * cost.parameter_bytes, kernels=cost.parameter_tensors)
        work: Mapping[Operation, Work] = {**cost.work, "copy": copy}
        computing[name] = {key: max(one.flops / rate, one.traffic_bytes / bandwidth) for key, one in work.items()}
        dispatching[name] = {key: one.kernels * device.host_seconds for key, one in work.items()}
        if "update" in work:
            most = max(most, ceil(work["update"].kernels / max(1, cost.parameter_tensors)))
    if device.kind == "cpu":  # It dispatches and computes in turn.
        for name, own in dispatching.items():
            computing[name] = {key: one + own[key] for key, one in computing[name].items()}
        return Clock(device=computing)
    # An update was counted tensor by tensor; on a GPU torch's optimizers step all of a stage's tensors at once.
    host: Seconds = {name: {**own, "update": 0.0} for name, own in dispatching.items()}
    return Clock(device=computing, host=host, host_update=most * device.host_seconds)


def clocks_of(
    devices: Sequence[Device], costs: CostTable, products: Products, profile: Profile | None
) -> Mapping[str, Clock]:
    """Return each device's clock, one for all of a type; a profile is of the first device's type, and scaled for the others."""
    first, clocks = devices[0].type.flops_per_second(products), dict[DeviceType, Clock]()
    for kind in {device.type for device in devices}:
        if profile is None:
            made = estimated(costs, kind, products)
        else:
            slower = first / kind.flops_per_second(products)
            made = Clock({name: {key: slower * one for key, one in own.items()} for name, own in profile.nodes.items()})
            # A host takes the same beside any GPU; for an update, the mean over the stages that were timed.
            if profile.kind == "cuda":
                host = {name: {**own, "update": 0.0} for name, own in profile.host.items()}
                made = evolve(made, host=host, host_update=fmean(own["update"] for own in profile.host.values()))
        clocks[kind] = made
    return {device.name: clocks[device.type] for device in devices}


def operations(segment: Segment, *, delayed: bool) -> Mapping[Verb, tuple[Operation, ...]]:
    """Return what each of a segment's nodes does in the passes of a micro-batch, and in an update; without delay, no parameters are stored."""
    if segment.kind == "head":
        return {"forward": ("forward_backward",), "backward": (), "update": ("update", *(_FOR_DELAY * delayed))}
    stored = segment.backward == "stored" and delayed
    nothing: tuple[Operation, ...] = ("invert", "recompute") if stored else ("reverse",)
    kept: Mapping[Keeps, tuple[Operation, ...]] = {"graph": ("replay",), "input": ("recompute",), "nothing": nothing}
    forward: Operation = "record" if segment.keeps == "graph" else "forward"
    update: tuple[Operation, ...] = ("update", "copy") if stored else ("update", *(_FOR_DELAY * delayed))
    return {"forward": (forward,), "backward": kept[segment.keeps], "update": update}


def node_seconds(program: StageProgram, segment: Segment, name: str, seconds: Seconds) -> StageSeconds:
    """Return the seconds of the operations of one node of a stage's segment."""
    done, own = operations(segment, delayed=program.delayed), seconds[name]
    return StageSeconds(**{verb: sum((own.get(key, 0.0) for key in some), 0.0) for verb, some in done.items()})


def stage_seconds(program: StageProgram, seconds: Seconds, host_update: float = 0.0) -> StageSeconds:
    """Return the seconds of a stage's operations, with those of its host for an update."""
    nodes = [node_seconds(program, segment, name, seconds) for segment in program.segments for name in segment.nodes]
    return StageSeconds(
        forward=sum(node.forward for node in nodes),
        backward=sum(node.backward for node in nodes),
        update=sum(node.update for node in nodes) + host_update,
    )


@frozen(kw_only=True)
class PlannerInputs(Lowering):
    """What placement and prediction are computed from."""

    costs: CostTable
    schedule: RequestedSchedule
    transport: EncodedShare
    devices: tuple[Device, ...]
    policy: Policy = "arrival"
    clocks: Mapping[str, Clock]
    profile: Profile | None = None
    replicas: int = 1
    together: tuple[tuple[str, ...], ...] = ()
    """Sets of nodes that every cut has in one stage."""
    outside_seconds: float = 0.0
    """Of a micro-batch, where its samples enter: loading, with what a profile counts to no stage."""

    @property
    def limits(self) -> list[int | None]:
        return [device.memory_bytes for device in self.devices]

    def kind_of(self, device: Device) -> Hashable:
        """Return what devices of one kind have in common: any can take the place of any other."""
        return self.clocks[device.name], device.link, device.network, device.memory_bytes

    @property
    def crosses_machines(self) -> bool:
        """Whether the devices of all replicas are in more than one machine."""
        apart = len({device.machine for device in self.devices}) > 1
        one = MACHINE_DEVICES[self.devices[0].type.kind]
        return apart or (self.replicas > 1 and len(self.devices) * self.replicas > one)

    @property
    def memory(self) -> MemoryModel:
        return MemoryModel(costs=self.costs, transport=self.transport, policy=self.policy)

    def held_bytes(self, placement: Placement) -> list[int]:
        """Return the most bytes that every device would hold, by the memory model."""
        peaks = self.memory.peaks(self.placed(placement))
        return [peaks.get(device.name, 0) for device in self.devices]

    def fits(self, placement: Placement) -> bool:
        """Whether the devices' memory suffices for a placement."""
        limits = self.limits
        held = zip(self.held_bytes(placement), limits, strict=True) if any(limits) else ()
        return all(limit is None or used <= limit for used, limit in held)

    def seconds(self, program: StageProgram) -> StageSeconds:
        """Return the seconds of a stage on its device, with those of loading where samples enter, and of replicas' exchange."""
        clock = self.clocks[program.device]
        seconds = stage_seconds(program, clock.longer, clock.host_update)
        # Replicas sum the gradients by a ring all-reduce: each of R sends 2 (R - 1) / R of the bytes in 2 (R - 1) messages (Patarasuk and
        # Yuan 2009, https://doi.org/10.1016/j.jpdc.2008.09.002). Their link is that of one machine where it has room for all of them.
        device = next(device for device in self.devices if device.name == program.device)
        link = device.network if device.network and self.crosses_machines else device.link
        size, others = sum(self.costs.nodes[name].gradient_bytes for name in program.nodes), self.replicas - 1
        exchange = 2 * others * (link.latency_seconds + size / self.replicas / link.bytes_per_second)
        enters = any(edge.producer == INPUT for edge in program.receives)
        return evolve(
            seconds,
            forward=seconds.forward + (self.outside_seconds if enters else 0.0),
            update=seconds.update + exchange,
            exchange=exchange,
        )

    def paced(self, programs: Sequence[StageProgram]) -> list[StageSeconds]:
        """Return the seconds of all stages together: the host of one GPU that does everything runs ahead, so that the larger of the sums over a micro-batch counts."""
        stages, clock = [self.seconds(program) for program in programs], self.clocks[programs[0].device]
        if clock.host is None or len({program.device for program in programs}) > 1:
            return stages
        k = self.accumulation
        host, device, larger = (
            sum(stage_seconds(program, *own).per_micro_batch(k) for program in programs)
            for own in ((clock.host,), (clock.device,), (clock.longer, clock.host_update))
        )
        host += self.outside_seconds + len(programs) * clock.host_update / k
        larger += self.outside_seconds
        share = max(host, device) / larger if larger else 1.0
        return [
            evolve(
                one,
                forward=share * one.forward,
                backward=share * one.backward,
                update=share * (one.update - one.exchange) + one.exchange,
            )
            for one in stages
        ]

    def pipeline(self, programs: Sequence[StageProgram]) -> Pipeline:
        """Return the time model's view of compiled programs."""
        device = {device.name: device for device in self.devices}
        host = {program.index: device[program.device] for program in programs}
        compiled = {channel.key: channel for program in programs for channel in program.channels}
        channels: dict[ChannelKey, ChannelTiming] = {}
        for key, channel in sorted(compiled.items(), key=lambda item: item[0].direction, reverse=True):
            sender, receiver = host[channel.sender], host[channel.receiver]
            channels[key] = ChannelTiming(channel.sender, channel.receiver)
            if sender != receiver:
                link, ends = sender.link_to(receiver), (sender.name, receiver.name)
                busy = channel.training.payload_bytes / link.bytes_per_second
                channels[key] = ChannelTiming(channel.sender, channel.receiver, ends, busy, link.latency_seconds)
        return Pipeline(
            stages=tuple(programs), seconds=tuple(self.paced(programs)), channels=channels, policy=self.policy
        )
