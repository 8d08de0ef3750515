"""The number of stages, if the specification leaves it open: the fewest that are about as fast as the best number.

Each stage more is a message more and a micro-batch more of delay, so a device that makes training hardly faster is left idle.
"""

from __future__ import annotations

from functools import cached_property
from math import inf

from attrs import define, evolve, field

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
    numbers = _Numbers(inputs=inputs, objective=objective)
    bounds, ticks = numbers.bounds, numbers.ticks
    for stages in sorted(bounds, key=lambda stages: (bounds[stages], stages)):
        if bounds[stages] < min(ticks.values(), default=inf):
            numbers.search(stages)
    best = min(sorted(ticks, reverse=True), key=ticks.__getitem__)
    if best in numbers.refused:
        raise numbers.refused[best]
    enough = ABOUT_AS_FAST * ticks[best]
    fewest = next(
        stages for stages in bounds if ticks.get(stages, bounds[stages]) <= enough and numbers.search(stages) <= enough
    )
    others = sorted({fewest - 1, fewest + 1, best} & set(bounds) - {fewest})
    chosen = f'partition.stages = "auto": {plural(fewest, "stage")} for {seconds(ticks[fewest])} a micro-batch'
    placement = numbers.found[fewest]
    return evolve(placement, notes=(*placement.notes, "; ".join([chosen, *map(numbers.would_take, others)])))


@define(kw_only=True, slots=False)
class _Numbers:
    """The numbers of stages that were searched."""

    inputs: PlannerInputs
    objective: Objective
    ticks: dict[int, float] = field(init=False, factory=dict)
    """Infinite if nothing fits."""
    found: dict[int, Placement] = field(init=False, factory=dict)
    refused: dict[int, NoFeasiblePlan] = field(init=False, factory=dict)

    @cached_property
    def bounds(self) -> dict[int, float]:
        """Seconds that hardly any tick is below, of every number: those of the longest node, and an even share of all work.

        Nodes that share a stage may take less than apart: they hand nothing on.
        """
        devices = node_table(self.inputs).seconds
        nodes = [min(own) for own in zip(*(one for each in devices for one in (each.inner, each.last)), strict=True)]
        most = min(len(self.inputs.devices), self.inputs.most_stages)
        return {stages: max(*nodes, sum(nodes) / stages) for stages in range(1, most + 1)}

    def search(self, stages: int) -> float:
        """Place a number of stages, once, and return its tick."""
        if stages not in self.ticks:
            self.ticks[stages] = inf
            try:
                self.found[stages] = cut_and_place(self.inputs, stages, self.objective)
            except NoFeasiblePlan as error:
                self.refused[stages] = error
            else:
                pipeline = Prediction(inputs=self.inputs, placement=self.found[stages]).pipeline
                self.ticks[stages] = tick(pipeline).seconds
        return self.ticks[stages]

    def would_take(self, stages: int) -> str:
        """Say what is known of a number."""
        if stages in self.refused:
            return f"{stages} would not fit"
        if stages in self.found:
            return f"{stages} would take {seconds(self.ticks[stages])}"
        return f"{stages} would take at least {seconds(self.bounds[stages])}"
