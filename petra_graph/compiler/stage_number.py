"""The number of stages, if the specification leaves it open: the fewest that are about as fast as the best number.

Each stage more is a message more and a micro-batch more of delay, so a device that makes training hardly faster is left idle.
"""

from __future__ import annotations

from math import inf

from attrs import evolve

from petra_graph.compiler.memory_and_time import Prediction
from petra_graph.compiler.node_table import node_table
from petra_graph.compiler.placement_search import cut_and_place
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.compiler.proposals import Objective
from petra_graph.compiler.simulator.steady_state import tick
from petra_graph.errors import NoFeasiblePlan
from petra_graph.program.placement import Placement
from petra_graph.units import plural, seconds

ABOUT_AS_FAST = 1.05
"""A tick over the best one's."""


def cut_into_fewest(inputs: PlannerInputs, objective: Objective) -> Placement:
    """Cut the network into the fewest stages, at most one a device, whose tick is within 5 % of the best number's, and place them.

    Raises:
        SpecError: the listed depths do not fit the stages.
        NoFeasiblePlan: the devices' memory does not suffice for any number; of the largest one.
    """
    if isinstance(inputs.schedule, tuple):
        return cut_and_place(inputs, len(inputs.schedule), objective)
    inputs = evolve(inputs, overlap=False)  # A run does not overlap.
    found: dict[int, Placement] = {}
    ticks: dict[int, float] = {}
    refused: dict[int, NoFeasiblePlan] = {}

    def search(stages: int) -> None:
        if stages in ticks:
            return
        ticks[stages] = inf
        try:
            found[stages] = cut_and_place(inputs, stages, objective)
        except NoFeasiblePlan as error:
            refused[stages] = error
        else:
            ticks[stages] = tick(Prediction(inputs=inputs, placement=found[stages]).pipeline).seconds

    bounds = _bounds(inputs)
    for stages in sorted(bounds, key=lambda stages: (bounds[stages], stages)):
        if bounds[stages] < min(ticks.values(), default=inf):
            search(stages)
    best = min(sorted(ticks, reverse=True), key=ticks.__getitem__)
    if best in refused:
        raise refused[best]
    enough = ABOUT_AS_FAST * ticks[best]
    fewest = best
    for stages in range(1, best):
        if bounds[stages] <= enough:
            search(stages)
            if ticks[stages] <= enough:
                fewest = stages
                break

    def would_take(stages: int) -> str:
        if stages in refused:
            return f"{stages} would not fit"
        if stages in found:
            return f"{stages} would take {seconds(ticks[stages])}"
        return f"{stages} would take at least {seconds(bounds[stages])}"

    others = sorted({fewest - 1, fewest + 1, best} & set(bounds) - {fewest})
    chosen = f'partition.stages = "auto": {plural(fewest, "stage")} for {seconds(ticks[fewest])} a micro-batch'
    note = "; ".join([chosen, *map(would_take, others)])
    return evolve(found[fewest], notes=(*found[fewest].notes, note))


def _bounds(inputs: PlannerInputs) -> dict[int, float]:
    """Return seconds that no tick is below, of every number of stages: those of the longest node, and an even share of all work."""
    devices = node_table(inputs).seconds
    nodes = [min(own) for own in zip(*(one for each in devices for one in (each.inner, each.last)), strict=True)]
    most = min(len(inputs.devices), inputs.most_stages)
    return {stages: max(*nodes, sum(nodes) / stages) for stages in range(1, most + 1)}
