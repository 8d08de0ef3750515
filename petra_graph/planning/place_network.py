"""The place step: the stages, their devices and their depths, decided if the specification leaves them open.

    stages     "per-block", or listed: as they are; a number: cut by cost, the fastest by the time model; "auto": the fewest that are about as fast as any number
    devices    as many as stages: one each; fewer: by cost, or all stages on the only device if memory has no limit; more:
               the first ones, or the faster ones if they differ; in the order that is faster, or in the listed one
    keep       as the method says, or listed; "auto": as fast as memory allows (`compiler.node_table`)
    schedule   as named; "auto": the least depths at full speed
    processes  each is a device, and hosts consecutive stages: those of a planned device, or by cost

Costs are measured only if one of these decisions needs them. Stages and depths follow from the devices that the
specification names, present or not, so that a plan and its run, on whatever runtime, have the same stages.

If no limit is stated, a device may hold what it has. Memory limits hold for the devices that do the work: a plan's are those of the specification, a run's are those that are
present, or its processes. If the planned devices are not used, a limit that they would break refuses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attrs import evolve

from petra_graph.compiler.lower import partition
from petra_graph.compiler.placement_search import only_hosts, place
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.compiler.spec_checks import check_depths, refuse
from petra_graph.errors import NoFeasiblePlan, Problem, SpecError, shown
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.planning.spec_devices import machine_of, planned_devices
from petra_graph.program.device_types import Device
from petra_graph.program.stage_program import Partition, Placement
from petra_graph.units import plural

Devices = tuple[Device, ...]


def place_network(network: MeasuredNetwork, devices: Devices) -> Placement:
    """Place a network on devices that need not be present, as if what they have were stated as their limits.

    Raises:
        SpecError: there are fewer nodes than stages, or depths do not fit the stages.
        NoFeasiblePlan: no placement keeps the devices' memory limits.
    """
    placement, limited = _place(network, devices), _with_own_limits(devices)
    if limited == devices or _as_placed(network, placement, limited).fits(placement):
        return placement
    return _place(network, limited)


def place_on_present(network: MeasuredNetwork, present: tuple[str, ...]) -> Placement:
    """Place a network on devices that are present, as many as the specification names or one; errors as of `place_network`."""
    devices, names = planned_devices(network.spec.partition), tuple(dict.fromkeys(present))
    if list(names) == [device.name for device in devices]:
        return place_network(network, devices)
    placement = place_network(network, devices) if len(names) > 1 else _place_as_planned(network, devices)
    hosts = names if len(names) > 1 else names * len(devices)
    present_name = dict(zip([device.name for device in devices], hosts, strict=True))
    stages = tuple(evolve(stage, device=present_name[stage.device]) for stage in placement.stages)
    placement = evolve(placement, stages=stages, devices=planned_devices(network.spec.partition, names))
    check_limits(network, placement)
    return placement


def place_on_processes(network: MeasuredNetwork, processes: int) -> Placement:
    """Place a network on as many devices as a pipeline has processes, by cost if the planned devices are fewer or more.

    The process of a stage decides when its operations run, and changes no bit. Each may hold what a planned device may:
    the least of them, if they are not as many. Errors are those of `place_network`, and SpecError: there are more processes than stages.
    """
    devices = planned_devices(network.spec.partition)
    as_many = len(devices) == processes
    placement = planned = place_network(network, devices) if as_many else _place_as_planned(network, devices)
    if processes > (most := len(planned.stages)):
        message = f"{processes} processes cannot share {plural(most, 'stage')}"
        hint = f"start at most {most}, or cut the network into more stages"
        raise SpecError(Problem(message=message, hint=hint, path=("partition", "stages")))
    if not as_many:
        limit = min((device.memory_bytes for device in devices if device.memory_bytes is not None), default=None)
        first = evolve(devices[0], memory_bytes=limit)
        ranks = tuple(
            evolve(first, name=f"rank {rank}", machine=machine_of(rank, first.type)) for rank in range(processes)
        )
        stages = Partition(stages=planned.stages)
        hosted = place(_as_placed(network, planned, ranks), stages, hosts=only_hosts(stages, ranks))
        placement = evolve(hosted, kept=planned.kept, notes=planned.notes)
        check_limits(network, placement)
    rank_of = {device.name: rank for rank, device in enumerate(placement.devices)}
    return evolve(placement, stages=tuple(evolve(stage, rank=rank_of[stage.device]) for stage in placement.stages))


def _place_as_planned(network: MeasuredNetwork, devices: Devices) -> Placement:
    """Return the placement of the plan; where the planned devices, which need not be used, would break their limits, without these: open nodes then keep least."""
    try:
        return place_network(network, devices)
    except NoFeasiblePlan:
        return _place(network, tuple(evolve(device, memory_bytes=None) for device in devices), keep="least")


def check_limits(network: MeasuredNetwork, placement: Placement) -> None:
    """Check that devices keep their limits, and need no more than they have; NoFeasiblePlan: they do not."""
    limited = _with_own_limits(placement.devices)
    if any(device.memory_bytes is not None for device in limited):
        hosts = [stage.device for stage in placement.stages]
        place(_as_placed(network, placement, limited), Partition(stages=placement.stages), hosts=hosts)


def check_stages(network: MeasuredNetwork, placement: Placement) -> None:
    """Check that nodes which share a parameter are in one stage, and that each node can keep there what is listed for it; SpecError: not."""
    network.check_shared([stage.nodes for stage in placement.stages])
    listed = network.spec.method.keep
    graphs = {name for name, keeps in listed.items() if keeps == "graph"} if isinstance(listed, Mapping) else set()
    refuse(
        Problem(
            message=f"node {shown(name)} cannot keep its graph: its stage, {program.index}, has depth {program.depth}, so its "
            "parameters change before the backward",
            hint='set it to "input", or set method.allow_stored = true, which stores the parameters of the forward as well',
            path=("method", "keep", name),
        )
        for program in network.lowering.placed(placement)
        for segment in program.segments
        for name in segment.nodes
        if segment.keeps != "graph" and name in graphs
    )


def _place(network: MeasuredNetwork, devices: Devices, keep: Literal["fill", "least"] = "fill") -> Placement:
    """Place a network under the limits that devices state; `keep` is how much nodes keep, if that is open."""
    checked, given, spec = network.checked, network.checked.stages, network.spec
    number, listed = spec.partition.stages, spec.partition.devices
    open_keep = keep if spec.method.keep == "auto" else None
    by_cost = checked.schedule == "auto" or bool(open_keep) or any(one.memory_bytes is not None for one in devices)
    hosts: list[str] | None = None
    if number == 1 == len(devices) and not by_cost:
        # There is nothing to choose, and costs of a large network take longer to measure than a small run of it.
        given = partition(network.graph, [network.graph.order], [""])
        check_depths(checked.schedule, network.graph, given)
    if given is not None:
        each = isinstance(listed, tuple) and len(listed) == len(given.stages)
        hosts = [*listed] if isinstance(listed, tuple) and each else only_hosts(given, devices)
    if given is not None and hosts is not None and checked.schedule != "auto" and not by_cost:
        placement = Placement(stages=given.spread_over(hosts).stages, devices=devices, schedule=checked.schedule)
    elif given is not None:
        placement = place(network.planner_inputs(devices), given, open_keep, hosts)
    else:
        inputs, depths = network.planner_inputs(devices), checked.schedule
        least = len(depths) if isinstance(depths, tuple) else 1
        network.check_shared(number if isinstance(number, int) else least)
        placement = place(inputs, number if isinstance(number, int) else "auto", open_keep)
    check_stages(network, placement)
    return placement


def _as_placed(network: MeasuredNetwork, placement: Placement, devices: Devices) -> PlannerInputs:
    """Return inputs on some devices under which stages keep the depths of a placement, and nodes what they keep there."""
    inputs = network.planner_inputs(devices)
    return evolve(inputs, schedule=placement.schedule, kept=inputs.kept if placement.kept is None else placement.kept)


def _with_own_limits(devices: Devices) -> Devices:
    """Return devices of which each may hold what it has, if the specification states no limit."""
    return tuple(
        evolve(device, memory_bytes=device.type.memory_bytes) if device.memory_bytes is None else device
        for device in devices
    )
