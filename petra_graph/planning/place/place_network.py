"""The place step: the stages, their devices and their depths, decided where the specification leaves them open.

    stages     "per-block", or listed: as they are; a number: cut by cost, the fastest by the time model; "auto": the fewest that are about as fast as any number
    devices    as many as stages: one each; fewer: by cost, or all stages on the only device where memory has no limit; more:
               the first ones, or where they differ those that are faster; in the order that is faster, or in the listed one
    keep       as the method says, or listed; "auto": as fast as memory allows (`planning.place.kept_by_node`)
    schedule   as named; "auto": the least depths at full speed
    processes  each is a device, and hosts consecutive stages: those of a planned device, or by cost

Costs are measured only where one of these decisions needs them. Stages and depths follow from the devices that the
specification names, present or not, so that a plan and its run, on whatever runtime, have the same stages.

Where no limit is stated, a device may hold what it has. Memory limits hold for the devices that do the work: a plan's are those of the specification, a run's are those that are
present, or its processes. Where the planned devices are not used, a limit that they would break refuses nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from attrs import evolve

from petra_graph.compiler.measures import fits
from petra_graph.compiler.placement_search import cut_and_place, place_stages, resolved_placement, within_memory
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.compiler.spec_checks import check_kept, check_processes
from petra_graph.compiler.stage_number import cut_into_fewest
from petra_graph.errors import NoFeasiblePlan
from petra_graph.planning.machine.spec_devices import machine_of, planned_devices
from petra_graph.planning.network.measure_network import MeasuredNetwork
from petra_graph.planning.network.shared_across_stages import check_number, check_shared
from petra_graph.planning.place.kept_by_node import place_and_keep
from petra_graph.program.device_types import Device
from petra_graph.program.placement import Partition, Placement


def place(network: MeasuredNetwork, devices: tuple[Device, ...]) -> Placement:
    """Place a network as if what devices have were stated as their limits.

    Args:
        devices: those that the specification names, which need not be present.

    Raises:
        SpecError: there are fewer nodes than stages, or depths do not fit the stages.
        NoFeasiblePlan: no placement keeps the devices' memory limits.
    """
    placement, own = _place(network, devices), _with_own_limits(devices)
    if own == devices or fits(_as_placed(network.planner_inputs(own), placement), placement):
        return placement
    return _place(network, own)


def place_on_present(network: MeasuredNetwork, devices: tuple[Device, ...], present: tuple[str, ...]) -> Placement:
    """Place a network on devices that are present: each planned device in its order, or all stages on the only one.

    Args:
        devices: those that the specification names.
        present: names of devices, as many as these, or one.

    Raises:
        SpecError, NoFeasiblePlan: as `place`; of the devices that are present.
    """
    names = tuple(dict.fromkeys(present))
    if list(names) == [device.name for device in devices]:
        return place(network, devices)

    placement = place(network, devices) if len(names) > 1 else place_as_planned(network, devices)
    hosts = names if len(names) > 1 else names * len(devices)
    present_name = dict(zip([device.name for device in devices], hosts, strict=True))
    stages = tuple(evolve(stage, device=present_name[stage.device]) for stage in placement.stages)
    own = planned_devices(network.spec.partition, names)
    return judged(network, evolve(placement, stages=stages, devices=own))


def place_on_processes(network: MeasuredNetwork, devices: tuple[Device, ...], processes: int) -> Placement:
    """Place a network on as many devices as processes, by cost where the planned devices are fewer or more.

    The process of a stage decides when its operations run, and changes no bit. Each may hold what a planned device may:
    the least of them, where they are not as many.

    Args:
        devices: those that the specification names.
        processes: in one pipeline.

    Raises:
        SpecError: as `place`, or there are more processes than stages.
        NoFeasiblePlan: as `place`; of the processes.
    """
    own = len(devices) == processes
    placement = place(network, devices) if own else place_as_planned(network, devices)
    check_processes(len(placement.stages), processes)
    if own:
        return _ranked(placement)
    limit = min((device.memory_bytes for device in devices if device.memory_bytes is not None), default=None)
    kind = devices[0].type
    ranks = tuple(
        evolve(devices[0], name=f"rank {rank}", memory_bytes=limit, machine=machine_of(rank, kind))
        for rank in range(processes)
    )
    inputs = _as_placed(network.planner_inputs(ranks), placement)
    hosted = place_stages(inputs, Partition(stages=placement.stages), network.spec.partition.strategy)
    return _ranked(judged(network, evolve(hosted, kept=placement.kept, notes=placement.notes, by_cost=True)))


def place_as_planned(network: MeasuredNetwork, devices: tuple[Device, ...]) -> Placement:
    """Return the placement of the plan; without limits where the planned devices, which need not be used, would break them.

    Nodes then keep least, where what they keep is open.
    """
    try:
        return place(network, devices)
    except NoFeasiblePlan:
        return _place(network, tuple(evolve(device, memory_bytes=None) for device in devices), fill=False)


def judged(network: MeasuredNetwork, placement: Placement) -> Placement:
    """Return a placement whose devices keep their limits, and need no more than they have.

    Raises:
        NoFeasiblePlan: they do not.
    """
    own = _with_own_limits(placement.devices)
    if any(device.memory_bytes is not None for device in own):
        within_memory(_as_placed(network.planner_inputs(own), placement), Partition(stages=placement.stages))
    return placement


def _with_own_limits(devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """Return devices of which each may hold what it has, where the specification states no limit."""
    return tuple(
        evolve(device, memory_bytes=device.type.memory_bytes) if device.memory_bytes is None else device
        for device in devices
    )


def _as_placed(inputs: PlannerInputs, placement: Placement) -> PlannerInputs:
    """Return inputs under which stages keep the depths of a placement, and nodes what they keep there."""
    kept = inputs.kept if placement.kept is None else placement.kept
    return evolve(inputs, schedule=placement.schedule, kept=kept)


def _ranked(placement: Placement) -> Placement:
    rank_of = {device.name: rank for rank, device in enumerate(placement.devices)}
    return evolve(placement, stages=tuple(evolve(stage, rank=rank_of[stage.device]) for stage in placement.stages))


def cut_by_cost(network: MeasuredNetwork, inputs: PlannerInputs, *, fill: bool = True) -> Placement:
    """Cut a network whose specification lists no stages, and place them, by the costs and the seconds of these inputs.

    Args:
        fill: where what nodes keep is open, use the memory that is left.

    Raises:
        SpecError: there are more stages than parameters that nodes share allow.
        NoFeasiblePlan: no placement keeps the devices' memory limits.
    """
    partition = network.spec.partition
    listed = len(inputs.schedule) if isinstance(inputs.schedule, tuple) else 1
    stages = partition.stages if isinstance(partition.stages, int) else listed
    check_number(network.graph, network.shapes, stages, inputs.together)
    search = partial(cut_and_place, stages=partition.stages) if isinstance(partition.stages, int) else cut_into_fewest
    return _searched(network, inputs, partial(search, objective=partition.strategy), fill=fill)


def _searched(
    network: MeasuredNetwork, inputs: PlannerInputs, search: Callable[[PlannerInputs], Placement], *, fill: bool
) -> Placement:
    """Return what a search finds, with what nodes keep, where the specification leaves that open."""
    if network.spec.method.keep == "auto":
        found = place_and_keep(inputs, search, fill=fill and network.spec.partition.strategy == "balanced")
    else:
        found = search(inputs)
    return evolve(found, by_cost=True)


def _place(network: MeasuredNetwork, devices: tuple[Device, ...], *, fill: bool = True) -> Placement:
    return checked(network, _placed(network, devices, fill=fill))


def checked(network: MeasuredNetwork, placement: Placement) -> Placement:
    """Return a placement whose stages the specification allows.

    Raises:
        SpecError: nodes that share a parameter are apart, or a node cannot keep in its stage what it is to keep.
    """
    check_shared(network.graph, network.shapes, [stage.nodes for stage in placement.stages], network.spec.partition)
    check_kept(network.spec.method.keep, network.programs(placement))
    return placement


def _placed(network: MeasuredNetwork, devices: tuple[Device, ...], *, fill: bool) -> Placement:
    partition, stages = network.spec.partition, network.stages

    def searched(search: Callable[[PlannerInputs], Placement]) -> Placement:
        return _searched(network, network.planner_inputs(devices), search, fill=fill)

    if stages is None:
        return cut_by_cost(network, network.planner_inputs(devices), fill=fill)
    count = len(stages.stages)
    limited = any(device.memory_bytes is not None for device in devices)
    unlike = len({(device.type, device.link, device.machine) for device in devices}) > 1
    chosen = unlike and (len(devices) > count or (len(devices) == count and partition.order == "searched"))
    if isinstance(partition.devices, tuple) and len(partition.devices) == count:
        stages = stages.spread_over(partition.devices)
        if limited:
            return searched(partial(within_memory, stages=stages))
    elif limited or 1 < len(devices) < count or chosen:
        return searched(partial(place_stages, stages=stages, objective=partition.strategy))
    else:
        stages = stages.spread_over([device.name for device in devices[:count]])
    if network.spec.method.keep == "auto":
        return searched(partial(within_memory, stages=stages))
    if network.schedule == "auto":
        return evolve(resolved_placement(network.planner_inputs(devices), stages), devices=devices, by_cost=True)
    return Placement(stages=stages.stages, devices=devices, schedule=network.schedule)
