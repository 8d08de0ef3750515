"""The place step: the stages, their devices and their depths, decided where the specification leaves them open.

    stages     "per-block", or listed: as they are; a number: cut by cost, the fastest by the time model
    devices    as many as stages: one each; fewer: by cost, or all stages on the only device where memory has no limit; more:
               the first ones, or where they differ those that are faster, in their order
    schedule   as named; "auto": the least depths at full speed
    processes  each is a device, and hosts consecutive stages: those of a planned device, or by cost

Costs are measured only where one of these decisions needs them. Stages, places and depths follow from the devices that
the specification names, present or not, so that a plan and its run, on whatever runtime, have the same stages.
"""

from __future__ import annotations

from attrs import evolve

from petra_graph.compiler.placement_search import cut_and_place, place_stages, resolved_schedule, within_memory
from petra_graph.compiler.spec_checks import check_processes
from petra_graph.errors import NoFeasiblePlan, PetraGraphError
from petra_graph.planning.devices import planned_devices
from petra_graph.planning.measure import MeasuredNetwork
from petra_graph.planning.remedies import working_remedies
from petra_graph.program.devices import Device
from petra_graph.program.placement import Partition, Placement


def place(network: MeasuredNetwork, devices: tuple[Device, ...]) -> Placement:
    """Place a network; where no placement fits, name changes of the specification after which it fits.

    Args:
        network: the network.
        devices: those that the specification names, which need not be present.

    Raises:
        SpecError: there are fewer nodes than stages, or depths do not fit the stages.
        NoFeasiblePlan: no placement keeps the devices' memory limits.
    """
    try:
        return _place(network, devices)
    except NoFeasiblePlan as error:
        hint = working_remedies(network, _fits)
        raise NoFeasiblePlan([evolve(problem, hint=hint) for problem in error.problems]) from None


def place_on_present(placement: Placement, network: MeasuredNetwork, present: tuple[str, ...]) -> Placement:
    """Return the same stages on devices that are present: each planned device in its order, or all on the only one."""
    names = tuple(dict.fromkeys(present))
    planned = [device.name for device in placement.devices]
    if list(names) == planned:
        return placement
    present_name = dict(zip(planned, names if len(names) > 1 else names * len(planned), strict=True))
    stages = tuple(evolve(stage, device=present_name[stage.device]) for stage in placement.stages)
    return evolve(placement, stages=stages, devices=planned_devices(network.spec.partition, names))


def place_on_processes(placement: Placement, network: MeasuredNetwork, processes: int) -> Placement:
    """Return the same stages on as many devices as processes, by cost where the planned devices are fewer or more.

    The process of a stage decides when its operations run, and changes no bit.

    Raises:
        SpecError: there are more processes than stages.
    """
    stages, devices = placement.stages, placement.devices
    check_processes(len(stages), processes)
    if not len({stage.device for stage in stages}) == processes == len(devices):
        ranks = tuple(evolve(devices[0], name=f"rank {rank}", memory_bytes=None) for rank in range(processes))
        inputs = evolve(network.planner_inputs(ranks), schedule=placement.schedule)
        placement = place_stages(inputs, Partition(stages=stages), network.spec.partition.strategy)
    rank_of = {device.name: rank for rank, device in enumerate(placement.devices)}
    return evolve(placement, stages=tuple(evolve(stage, rank=rank_of[stage.device]) for stage in placement.stages))


def _place(network: MeasuredNetwork, devices: tuple[Device, ...]) -> Placement:
    partition, stages = network.spec.partition, network.stages
    if stages is None:
        assert isinstance(partition.stages, int)
        return cut_and_place(network.planner_inputs(devices), partition.stages, partition.strategy)
    count = len(stages.stages)
    limited = any(device.memory_bytes is not None for device in devices)
    unlike = len({(device.type, device.link) for device in devices}) > 1
    if isinstance(partition.devices, tuple) and len(partition.devices) == count:
        stages = stages.spread_over(partition.devices)
        if limited:
            return within_memory(network.planner_inputs(devices), stages)
    elif limited or 1 < len(devices) < count or (unlike and len(devices) > count):
        return place_stages(network.planner_inputs(devices), stages, partition.strategy)
    else:
        stages = stages.spread_over([device.name for device in devices[:count]])
    schedule = network.schedule
    if schedule == "auto":
        schedule = resolved_schedule(network.planner_inputs(devices), stages)
    return Placement(stages=stages.stages, devices=devices, schedule=schedule)


def _fits(network: MeasuredNetwork) -> bool:
    try:
        _place(network, planned_devices(network.spec.partition))
    except PetraGraphError:
        return False
    return True
