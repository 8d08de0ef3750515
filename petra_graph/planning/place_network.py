"""The place step: the stages, their devices and their depths, decided if the specification leaves them open.

    stages     "per-block", or listed: as they are; a number: cut by cost, the fastest by the time model; "auto": the fewest that are about as fast as any number
    devices    as many as stages: one each; fewer: by cost, or all stages on the only device if memory has no limit; more:
               the first ones, or the faster ones if they differ; in the order that is faster, or in the listed one
    keep       as the method says, or listed; "auto": as fast as memory allows (`compiler.node_table`)
    schedule   as named; "auto": the least depths at full speed
    processes  each is a device, and hosts consecutive stages: those of a planned device, or by cost

Costs are measured, and the search is imported, only if one of these decisions needs them. Stages and depths follow from the devices that the
specification names, present or not, so that a plan and its run, on whatever runtime, have the same stages.

If no limit is stated, a device may hold what it has. Memory limits hold for the devices that do the work: a plan's are those of the specification, a run's are those that are
present, or its processes. If the planned devices are not used, a limit that they would break refuses nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attrs import evolve

from petra_graph.compiler.spec_checks import check_kept, check_processes
from petra_graph.errors import NoFeasiblePlan
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.planning.shared_across_stages import check_number, check_shared
from petra_graph.planning.spec_devices import machine_of, planned_devices
from petra_graph.program.device_types import Device
from petra_graph.program.placement import Partition, Placement

if TYPE_CHECKING:
    from petra_graph.compiler.planner_inputs import PlannerInputs


def place_network(network: MeasuredNetwork, devices: tuple[Device, ...]) -> Placement:
    """Place a network as if what devices have were stated as their limits.

    Args:
        devices: those that the specification names, which need not be present.

    Raises:
        SpecError: there are fewer nodes than stages, or depths do not fit the stages.
        NoFeasiblePlan: no placement keeps the devices' memory limits.
    """
    placement, limited = _place(network, devices), _with_own_limits(devices)
    if limited == devices:
        return placement
    inputs = _as_placed(network, placement, limited)
    return placement if inputs.fits(placement) else _place(network, limited)


def place_on_present(network: MeasuredNetwork, devices: tuple[Device, ...], present: tuple[str, ...]) -> Placement:
    """Place a network on devices that are present: each planned device in its order, or all stages on the only one.

    Args:
        devices: those that the specification names.
        present: names of devices, as many as these, or one.

    Raises:
        SpecError, NoFeasiblePlan: as `place_network`; of the devices that are present.
    """
    names = tuple(dict.fromkeys(present))
    if list(names) == [device.name for device in devices]:
        return place_network(network, devices)

    placement = place_network(network, devices) if len(names) > 1 else place_as_planned(network, devices)
    hosts = names if len(names) > 1 else names * len(devices)
    present_name = dict(zip([device.name for device in devices], hosts, strict=True))
    stages = tuple(evolve(stage, device=present_name[stage.device]) for stage in placement.stages)
    placement = evolve(placement, stages=stages, devices=planned_devices(network.spec.partition, names))
    check_limits(network, placement)
    return placement


def place_on_processes(network: MeasuredNetwork, devices: tuple[Device, ...], processes: int) -> Placement:
    """Place a network on as many devices as processes, by cost if the planned devices are fewer or more.

    The process of a stage decides when its operations run, and changes no bit. Each may hold what a planned device may:
    the least of them, if they are not as many.

    Args:
        devices: those that the specification names.
        processes: in one pipeline.

    Raises:
        SpecError: as `place_network`, or there are more processes than stages.
        NoFeasiblePlan: as `place_network`; of the processes.
    """
    if len(devices) == processes:
        placement = place_network(network, devices)
        check_processes(len(placement.stages), processes)
    else:
        planned = place_as_planned(network, devices)
        check_processes(len(planned.stages), processes)
        from petra_graph.compiler.placement_search import place_stages

        limit = min((device.memory_bytes for device in devices if device.memory_bytes is not None), default=None)
        ranks = tuple(
            evolve(devices[0], name=f"rank {rank}", memory_bytes=limit, machine=machine_of(rank, devices[0].type))
            for rank in range(processes)
        )
        hosted = place_stages(_as_placed(network, planned, ranks), Partition(stages=planned.stages))
        placement = evolve(hosted, kept=planned.kept, notes=planned.notes, by_cost=True)
        check_limits(network, placement)
    rank_of = {device.name: rank for rank, device in enumerate(placement.devices)}
    return evolve(placement, stages=tuple(evolve(stage, rank=rank_of[stage.device]) for stage in placement.stages))


def place_as_planned(network: MeasuredNetwork, devices: tuple[Device, ...]) -> Placement:
    """Return the placement of the plan; without limits if the planned devices, which need not be used, would break them.

    Nodes then keep least, if what they keep is open.
    """
    try:
        return place_network(network, devices)
    except NoFeasiblePlan:
        return _place(network, tuple(evolve(device, memory_bytes=None) for device in devices), fill=False)


def check_limits(network: MeasuredNetwork, placement: Placement) -> None:
    """Check that devices keep their limits, and need no more than they have.

    Raises:
        NoFeasiblePlan: they do not.
    """
    limited = _with_own_limits(placement.devices)
    if any(device.memory_bytes is not None for device in limited):
        from petra_graph.compiler.placement_search import within_memory

        within_memory(_as_placed(network, placement, limited), Partition(stages=placement.stages))


def _as_placed(network: MeasuredNetwork, placement: Placement, devices: tuple[Device, ...]) -> PlannerInputs:
    """Return inputs on some devices under which stages keep the depths of a placement, and nodes what they keep there."""
    inputs = network.planner_inputs(devices)
    kept = inputs.kept if placement.kept is None else placement.kept
    return evolve(inputs, schedule=placement.schedule, kept=kept)


def check_stages(network: MeasuredNetwork, placement: Placement) -> None:
    """Check that the specification allows the stages of a placement.

    Raises:
        SpecError: nodes that share a parameter are apart, or a node cannot keep in its stage what it is to keep.
    """
    check_shared(network.graph, network.shapes, [stage.nodes for stage in placement.stages], network.spec.partition)
    check_kept(network.spec.method.keep, network.programs(placement))


def _place(network: MeasuredNetwork, devices: tuple[Device, ...], *, fill: bool = True) -> Placement:
    """Place a network under the limits that devices state; without `fill`, nodes keep least if what they keep is open."""
    checked, hosts = network.checked, _given_hosts(network, devices)
    limited = any(device.memory_bytes is not None for device in devices)
    open_keep = network.spec.method.keep == "auto"
    if checked.stages is None or hosts is None or limited or checked.schedule == "auto" or open_keep:
        keep: Literal["fill", "least"] | None = ("fill" if fill else "least") if open_keep else None
        placement = evolve(_search(network, devices, hosts, keep), by_cost=True)
    else:
        stages = checked.stages.spread_over(hosts)
        placement = Placement(stages=stages.stages, devices=devices, schedule=checked.schedule)
    check_stages(network, placement)
    return placement


def _search(
    network: MeasuredNetwork,
    devices: tuple[Device, ...],
    hosts: list[str] | None,
    keep: Literal["fill", "least"] | None,
) -> Placement:
    """Place by cost; the search is imported here, which a run with given stages does not need."""
    from petra_graph.compiler.placement_search import cut_and_place, cut_into_fewest, place_stages, within_memory

    inputs, given, number = network.planner_inputs(devices), network.checked.stages, network.spec.partition.stages
    if given is not None:
        return (
            place_stages(inputs, given, keep)
            if hosts is None
            else within_memory(inputs, given.spread_over(hosts), keep)
        )
    listed = len(inputs.schedule) if isinstance(inputs.schedule, tuple) else 1
    check_number(network.graph, network.shapes, number if isinstance(number, int) else listed, inputs.together)
    return cut_and_place(inputs, number, keep) if isinstance(number, int) else cut_into_fewest(inputs, keep)


def _given_hosts(network: MeasuredNetwork, devices: tuple[Device, ...]) -> list[str] | None:
    """Return the names of the devices over which given stages are spread; None if costs decide which stage has which device."""
    given, partition = network.checked.stages, network.spec.partition
    if given is None:
        return None
    count = len(given.stages)
    if isinstance(partition.devices, tuple) and len(partition.devices) == count:
        return list(partition.devices)
    limited = any(device.memory_bytes is not None for device in devices)
    unlike = len({(device.type, device.link, device.machine) for device in devices}) > 1
    chosen = unlike and (len(devices) > count or (len(devices) == count))
    if limited or 1 < len(devices) < count or chosen:
        return None
    return [device.name for device in devices[:count]]


def _with_own_limits(devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """Return devices of which each may hold what it has, if the specification states no limit."""
    return tuple(
        evolve(device, memory_bytes=device.type.memory_bytes) if device.memory_bytes is None else device
        for device in devices
    )
