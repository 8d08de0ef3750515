"""Placements that costs decide: this is where the planner's searches are imported, which a run with given stages does not need.

    stages        devices                  what is searched
    not given                              where to cut, and the device of each stage
    given         hosts not given          the device of each stage
    given         given, with limits       whether they keep the limits, and the depths of "auto"
    given         given, without           the depths of "auto"

Under `keep = "auto"` each search is repeated for choices of what nodes keep.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from attrs import evolve

from petra_graph.compiler.cut_search import fits
from petra_graph.compiler.placement_search import (
    cut_and_place,
    cut_into_fewest,
    place_stages,
    resolved_placement,
    within_memory,
)
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.planning.place.kept_by_node import place_and_keep
from petra_graph.planning.shared_across_stages import check_number
from petra_graph.program.device_types import Device
from petra_graph.program.placement import Partition, Placement


def search_placement(
    network: MeasuredNetwork, devices: tuple[Device, ...], hosts: list[str] | None, *, fill: bool
) -> Placement:
    """Search for a placement under the limits that devices state.

    Args:
        hosts: the devices over which given stages are spread; None: costs decide.
        fill: if what nodes keep is open, use the memory that is left.

    Raises:
        SpecError: there are more stages than nodes, or than parameters that nodes share allow.
        NoFeasiblePlan: no placement keeps the devices' memory limits.
    """
    inputs, spec, given = network.planner_inputs(devices), network.spec, network.checked.stages
    auto = spec.method.keep == "auto"
    limited = any(limit is not None for limit in inputs.limits)
    search: Callable[[PlannerInputs], Placement]
    if given is None:
        search = _search_for_cut(network, inputs)
    elif hosts is None:
        search = partial(place_stages, stages=given)
    elif auto or limited:
        search = partial(within_memory, stages=given.spread_over(hosts))
    else:
        return evolve(resolved_placement(inputs, given.spread_over(hosts)), devices=devices, by_cost=True)
    found = place_and_keep(inputs, search, fill=fill) if auto else search(inputs)
    return evolve(found, by_cost=True)


def _search_for_cut(network: MeasuredNetwork, inputs: PlannerInputs) -> Callable[[PlannerInputs], Placement]:
    partition = network.spec.partition
    number = partition.stages if isinstance(partition.stages, int) else None
    listed = len(inputs.schedule) if isinstance(inputs.schedule, tuple) else 1
    check_number(network.graph, network.shapes, number or listed, inputs.together)
    if number is None:
        return cut_into_fewest
    return partial(cut_and_place, stages=number)


def fits_on(network: MeasuredNetwork, placement: Placement, devices: tuple[Device, ...]) -> bool:
    return fits(_as_placed(network.planner_inputs(devices), placement), placement)


def check_memory(network: MeasuredNetwork, placement: Placement, devices: tuple[Device, ...]) -> None:
    """Check that the stages of a placement keep the limits of these devices.

    Raises:
        NoFeasiblePlan: they do not.
    """
    within_memory(_as_placed(network.planner_inputs(devices), placement), Partition(stages=placement.stages))


def place_on_ranks(network: MeasuredNetwork, placement: Placement, ranks: tuple[Device, ...]) -> Placement:
    """Return a placement's stages on the devices of processes, by cost.

    Raises:
        NoFeasiblePlan: they do not keep the memory limits.
    """
    inputs = _as_placed(network.planner_inputs(ranks), placement)
    hosted = place_stages(inputs, Partition(stages=placement.stages))
    return evolve(hosted, kept=placement.kept, notes=placement.notes, by_cost=True)


def _as_placed(inputs: PlannerInputs, placement: Placement) -> PlannerInputs:
    """Return inputs under which stages keep the depths of a placement, and nodes what they keep there."""
    kept = inputs.kept if placement.kept is None else placement.kept
    return evolve(inputs, schedule=placement.schedule, kept=kept)
