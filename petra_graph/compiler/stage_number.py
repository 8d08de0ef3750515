"""The number of stages, where the specification leaves it open: the fewest that are about as fast as the best number.

Each stage more is a message more and a micro-batch more of delay, so a device that makes training hardly faster is left idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import inf

from attrs import define, evolve, field

from petra_graph.compiler.device_selection import least_tick
from petra_graph.compiler.memory_and_time import Prediction
from petra_graph.compiler.node_seconds import node_table
from petra_graph.compiler.partitioner.problem import Objective
from petra_graph.compiler.placement_search import cut_and_place
from petra_graph.compiler.planner_inputs import PlannerInputs
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
    numbers = _Numbers(inputs=evolve(inputs, overlap=False), objective=objective)  # A run does not overlap.
    bounds = numbers.bounds
    for stages in sorted(bounds, key=lambda stages: (bounds[stages], stages)):
        if bounds[stages] < numbers.seconds(numbers.best):
            numbers.search(stages)
    best = numbers.best
    if best not in numbers.found:
        raise numbers.refused[best]
    enough = ABOUT_AS_FAST * numbers.seconds(best)
    for stages in range(1, best):
        if bounds[stages] <= enough:
            numbers.search(stages)
    stages = next(stages for stages in bounds if numbers.seconds(stages) <= enough)
    others = sorted({stages - 1, stages + 1, best} & set(bounds) - {stages})
    chosen = f"{plural(stages, 'stage')} for {seconds(numbers.seconds(stages))} a micro-batch"
    text = "; ".join([f'partition.stages = "auto": {chosen}', *map(numbers.said, others)])
    _, placement = numbers.found[stages]
    return evolve(placement, notes=(*placement.notes, text))


@define(kw_only=True, slots=False)
class _Numbers:
    """The numbers of stages that were searched."""

    inputs: PlannerInputs
    objective: Objective
    found: dict[int, tuple[float, Placement]] = field(init=False, factory=dict)
    """Ticks and placements."""
    refused: dict[int, NoFeasiblePlan] = field(init=False, factory=dict)

    @cached_property
    def bounds(self) -> Mapping[int, float]:
        """Seconds that no tick is below, of every number."""
        table, most = node_table(self.inputs), min(len(self.inputs.devices), self.inputs.most_stages)
        return {stages: least_tick(self.inputs, table, stages) for stages in range(1, most + 1)}

    @property
    def best(self) -> int:
        return min(sorted(self.bounds, reverse=True), key=self.seconds)

    def search(self, stages: int) -> None:
        if stages in self.found or stages in self.refused:
            return
        try:
            placement = cut_and_place(self.inputs, stages, self.objective)
        except NoFeasiblePlan as error:
            self.refused[stages] = error
        else:
            pipeline = Prediction(inputs=self.inputs, placement=placement).pipeline
            self.found[stages] = tick(pipeline).seconds, placement

    def seconds(self, stages: int) -> float:
        """Return the tick, infinite where none was found."""
        return self.found[stages][0] if stages in self.found else inf

    def said(self, stages: int) -> str:
        """Return what is known of a number, for people."""
        if stages in self.refused:
            return f"{stages} would not fit"
        if stages in self.found:
            return f"{stages} would take {seconds(self.seconds(stages))}"
        return f"{stages} would take at least {seconds(self.bounds[stages])}"
