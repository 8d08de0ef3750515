"""A specification's setting for the planner: its devices with their clocks, and in how many bytes tensors travel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from attrs import evolve

from petra_graph.compiler.durations import OperationSeconds, estimated, profiled
from petra_graph.compiler.lower import MessageTypes
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.compiler.precision import transport_of
from petra_graph.errors import Problem, SpecError, shown
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.program.costs import CostTable, Operation
from petra_graph.program.devices import Device, Link
from petra_graph.program.method import Method
from petra_graph.program.profile import OPERATIONS, Profile
from petra_graph.record.profile import read_profile
from petra_graph.spec.model import AskedSchedule, Spec

_PATH = ("partition", "profile")
_TAKE_ONE = "take one of this specification, on such a device: petra-graph profile SPEC"


def planner_inputs_of(
    graph: NodeGraph,
    spec: Spec,
    chosen: tuple[Method, AskedSchedule],
    costs: CostTable,
    *,
    messages: MessageTypes,
    devices: tuple[Device, ...],
) -> PlannerInputs:
    """Return what is planned for.

    Args:
        graph: the network.
        spec: the rest of the specification.
        chosen: method and schedule.
        costs: every node's.
        messages: what messages between stages hold.
        devices: in the order of the pipeline.

    Raises:
        SpecError: the profile is of another network, micro-batch or precision, or cannot be read.
    """
    profile = profile_of(spec)
    if profile is not None:
        problems = list(_strange(profile, spec, costs, devices, graph))
        if problems:
            raise SpecError(problems)
    method, schedule = chosen
    if profile is not None and profile.link is not None:
        devices = tuple(evolve(device, link=_measured(device.link, profile.link, spec)) for device in devices)
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
        replicas=spec.partition.replicas,
        outside_seconds=0.0 if profile is None else profile.outside,
    )


def profile_of(spec: Spec) -> Profile | None:
    """Read the profile that the specification names.

    Raises:
        SpecError: it cannot be read.
    """
    if spec.partition.profile is None:
        return None
    return read_profile(Path(spec.partition.profile))


def _strange(
    profile: Profile, spec: Spec, costs: CostTable, devices: tuple[Device, ...], graph: NodeGraph
) -> Iterator[Problem]:
    """Yield how the profile differs from what is planned. Paths count from the whole."""
    for what, its, ours in (
        ("micro-batches of", profile.micro_batch, spec.data.batch),
        ("precision.compute =", profile.compute, spec.precision.compute),
        ("run.threads =", profile.threads, spec.run.threads),
        ("a device of kind", profile.kind, devices[0].type.kind),
    ):
        if its != ours:
            yield Problem(
                message=f"the profile is of {what} {shown(its)}, not {shown(ours)}", hint=_TAKE_ONE, path=_PATH
            )
    for name, node in graph.nodes.items():
        cost = costs.nodes[name]
        size = (cost.parameters, sum(cost.output_bytes))
        known = profile.nodes.get(name)
        if known is None:
            message = f"the profile has no node {shown(name)}"
        elif profile.sizes.get(name) != size:
            message = f"the profile's node {shown(name)} has other sizes than the network's"
        elif missing := OPERATIONS[node.kind] - known.keys():
            message = f"the profile has not timed {', '.join(sorted(missing))} of node {shown(name)}"
        else:
            continue
        yield Problem(message=message, hint=_TAKE_ONE, path=_PATH)
        return


def _measured(usual: Link, measured: Link, spec: Spec) -> Link:
    """Return the measured link, but for what the specification says itself."""
    asked = spec.partition
    return Link(
        latency_seconds=measured.latency_seconds if asked.link_latency is None else usual.latency_seconds,
        bytes_per_second=measured.bytes_per_second if asked.link_bandwidth is None else usual.bytes_per_second,
    )


def _clocks(
    devices: tuple[Device, ...], costs: CostTable, compute: str, profile: Profile | None
) -> Mapping[str, OperationSeconds]:
    if profile is None:
        return {device.name: estimated(costs, device.type, compute) for device in devices}
    first = devices[0].type.flops_per_second(compute)
    return {
        device.name: _scaled(profiled(profile), first / device.type.flops_per_second(compute)) for device in devices
    }


def _scaled(clock: OperationSeconds, factor: float) -> OperationSeconds:
    """Return the clock of another type of device: a profile is of the first's."""
    if factor == 1:
        return clock

    def seconds(node: str, operation: Operation) -> float:
        return factor * clock(node, operation)

    return seconds
