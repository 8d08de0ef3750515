"""A specification's setting for the planner: its devices with their clocks, and in how many bytes tensors travel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from attrs import evolve

from petra_graph.compiler.precision import transport_of
from petra_graph.compiler.seconds import Clock, estimated, profiled
from petra_graph.compiler.setting import Setting
from petra_graph.errors import Problem, SpecError, shown
from petra_graph.graph.stage_graph import StageGraph
from petra_graph.program.costs import CostTable, Operation
from petra_graph.program.devices import Device
from petra_graph.program.method import Method
from petra_graph.program.profile import Profile
from petra_graph.record.profile import read_profile
from petra_graph.spec.model import AskedSchedule, Spec

_PATH = ("partition", "profile")


def setting_of(
    graph: StageGraph,
    spec: Spec,
    chosen: tuple[Method, AskedSchedule],
    costs: CostTable,
    devices: tuple[Device, ...],
) -> Setting:
    """Return what is planned for.

    Args:
        graph: the network.
        spec: the rest of the specification.
        chosen: method and schedule.
        costs: every node's.
        devices: in the order of the pipeline.

    Raises:
        SpecError: the profile is of another network, micro-batch or precision, or cannot be read.
    """
    profile = profile_of(graph, spec)
    method, schedule = chosen
    if profile is not None and profile.link is not None and spec.partition.link_bandwidth is None:
        devices = tuple(evolve(device, link=profile.link) for device in devices)
    return Setting(
        graph=graph,
        costs=costs,
        method=method,
        schedule=schedule,
        accumulation=spec.method.accumulation,
        last_stage_keeps_graph=spec.method.last_stage == "keep-graph",
        transport=transport_of(spec.precision, devices[0].type.kind),
        devices=devices,
        clocks=_clocks(devices, costs, spec.precision.compute, profile),
        outside_seconds=0.0 if profile is None else profile.outside,
    )


def profile_of(graph: StageGraph, spec: Spec) -> Profile | None:
    """Read the profile that the specification names, and compare it with what is planned.

    Raises:
        SpecError: they do not belong together. Paths count from the whole.
    """
    if spec.partition.profile is None:
        return None
    profile = read_profile(Path(spec.partition.profile))
    problems = list(_strange(profile, graph, spec))
    if problems:
        raise SpecError(problems)
    return profile


def _strange(profile: Profile, graph: StageGraph, spec: Spec) -> Iterator[Problem]:
    hint = "take one of this specification: petra-graph profile SPEC"
    missing = [name for name in graph.nodes if name not in profile.nodes]
    if missing:
        yield Problem(message=f"the profile has no node {shown(missing[0])}", hint=hint, path=_PATH)
    for what, its, ours in (
        ("micro-batches of", profile.micro_batch, spec.data.batch),
        ("precision.compute =", profile.compute, spec.precision.compute),
    ):
        if its != ours:
            yield Problem(message=f"the profile is of {what} {shown(its)}, not {shown(ours)}", hint=hint, path=_PATH)


def _clocks(
    devices: tuple[Device, ...], costs: CostTable, compute: str, profile: Profile | None
) -> Mapping[str, Clock]:
    if profile is None:
        return {device.name: estimated(costs, device.type, compute) for device in devices}
    first = devices[0].type.flops_per_second(compute)
    return {
        device.name: _scaled(profiled(profile), first / device.type.flops_per_second(compute)) for device in devices
    }


def _scaled(clock: Clock, factor: float) -> Clock:
    """Return the clock of another type of device: a profile is of the first's."""
    if factor == 1:
        return clock

    def seconds(node: str, operation: Operation) -> float:
        return factor * clock(node, operation)

    return seconds
