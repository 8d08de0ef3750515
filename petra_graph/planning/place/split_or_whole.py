"""Whole backwards in place of split ones, where `schedule = "auto"` finds that memory is too short for both speed and less delay.

The graphs of a split backward live from its R to its W. Under memory limits they may fit in no cut, or only in a slower one, while
whole backwards fit: then the lesser delay is given up, and not the speed.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve

from petra_graph.compiler.memory_and_time import Prediction
from petra_graph.compiler.placement_search import resolved_placement
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.compiler.proposals import held_bytes, keeps, shares
from petra_graph.compiler.simulator.steady_state import tick
from petra_graph.errors import NoFeasiblePlan
from petra_graph.program.placement import Placement
from petra_graph.units import seconds, size_text

SAME_SPEED = 0.01
"""Relative difference of speeds that count as equal."""


def split_or_whole(inputs: PlannerInputs, search: Callable[[PlannerInputs], Placement]) -> Placement:
    """Return what a search finds for split backwards, or for whole ones where these fit and split ones do not, or are slower.

    Args:
        inputs: their split backwards are decided here if their schedule is "auto" and a device has a limit.
        search: raises NoFeasiblePlan where no placement keeps the limits.

    Raises:
        NoFeasiblePlan: neither fits; of split backwards.
    """
    if inputs.split_backward is not True or inputs.schedule != "auto" or not any(inputs.limits):
        return search(inputs)
    unsplit = evolve(inputs, split_backward=False)
    try:
        whole = search(unsplit)
    except NoFeasiblePlan:
        return search(inputs)
    try:
        split = search(inputs)
    except NoFeasiblePlan:
        split = resolved_placement(inputs, whole)
        held = held_bytes(inputs, split)
        if keeps(held, inputs.limits):  # Searches do not try every cut.
            return split
        parts = shares(held, inputs.limits)
        worst = max(range(len(parts)), key=parts.__getitem__)
        fitting = held_bytes(unsplit, whole)[worst]
        return _given_up(
            whole,
            f"these stages would hold {size_text(held[worst])} on {inputs.devices[worst].name}, which may hold "
            f"{size_text(inputs.limits[worst] or 0)}; whole, they hold {size_text(fitting)} there",
        )
    slow, fast = (_seconds(inputs, one) for one in (split, whole))
    if slow <= fast * (1 + SAME_SPEED):
        return split
    return _given_up(
        whole,
        f"the best cut found that keeps the memory limits takes {seconds(slow)} a micro-batch; whole, {seconds(fast)}",
    )


def _seconds(inputs: PlannerInputs, placement: Placement) -> float:
    return tick(Prediction(inputs=inputs, placement=placement).pipeline).seconds


def _given_up(whole: Placement, why: str) -> Placement:
    said = f"backwards are whole, although method.split_backward = true: split, {why}"
    return evolve(whole, notes=(*whole.notes, said))
