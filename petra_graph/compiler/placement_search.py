"""The placement step: the solver proposes stages on devices, the memory model accepts or refuses them.

    inputs --items--> solver --stages, devices--> memory model --> the best candidate that keeps the limits
                         ^------ limits, corrected by the memory model's bytes of the last candidate ------'

The solver adds bytes up node by node; the memory model goes through the operations of each stage, and is right. So the
solver gets limits in its own measure: the limit times the solver's bytes over the memory model's. Where none of its cuts
fits, stages move between neighbouring devices of the nearest one (`boundary_moves`). No placement is refused that the
memory model has not refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from attrs import evolve, frozen

from petra_graph.compiler.boundary_moves import Stages, moved_until_fits
from petra_graph.compiler.listed_stages import partition
from petra_graph.compiler.partition_problem import partition_problem
from petra_graph.compiler.partitioner.known_stages import find_place, find_with_last_stage
from petra_graph.compiler.partitioner.problem import Objective
from petra_graph.compiler.partitioner.search import Solution, find, own_bytes
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.compiler.simulator.least_depths import least_depths
from petra_graph.compiler.spec_checks import check_depths
from petra_graph.errors import NoFeasiblePlan, Problem, SpecError, shown
from petra_graph.program.placement import Partition, Placement
from petra_graph.spec.model import Schedule
from petra_graph.spec.sizes import size_text

_CORRECTIONS = 6
"""Runs of the solver with corrected limits, at most."""
_Limits = Sequence[float | None]
"""Of every device, in bytes as the solver counts them."""


def cut_and_place(inputs: PlannerInputs, stages: int, objective: Objective) -> Placement:
    """Cut the network into a number of stages, and place them.

    Raises:
        SpecError: there are fewer nodes than stages, or the listed depths do not fit the stages.
        NoFeasiblePlan: the devices' memory does not suffice.
    """
    nodes = len(inputs.graph.order)
    if stages > nodes:
        message = f"{stages} stages for {nodes} nodes: a stage holds one at least"
        problem = Problem(message=message, hint=f"set it to {nodes} or less", path=("partition", "stages"))
        raise SpecError(problem)
    used = evolve(inputs, devices=inputs.devices[:stages])

    def solve(goal: Objective, limits: _Limits) -> Solution | None:
        if not used.last_stage_keeps_graph:
            return find(partition_problem(used, stages, goal, limits))
        return find_with_last_stage(lambda kept: partition_problem(used, stages, goal, limits, kept))

    def partitioned(solution: Solution) -> Partition:
        cut = partition(used.graph, [stage.items for stage in solution.costs.stages], _devices(used, solution))
        check_depths(used.schedule, used.graph, cut)
        return cut

    placement = _Search(inputs=used, solve=solve, partitioned=partitioned, objective=objective).best()
    return evolve(placement, devices=inputs.devices)


def place_stages(inputs: PlannerInputs, stages: Partition, objective: Objective) -> Placement:
    """Place given stages, by cost where they outnumber the devices.

    Raises:
        NoFeasiblePlan: the devices' memory does not suffice.
    """
    names = [device.name for device in inputs.devices[: len(stages.stages)]]
    if len(names) in {1, len(stages.stages)}:
        return within_memory(inputs, stages.spread_over(names))
    nodes = [stage.nodes for stage in stages.stages]
    kept = nodes[-1] if inputs.last_stage_keeps_graph else ()

    def solve(goal: Objective, limits: _Limits) -> Solution | None:
        return find_place(partition_problem(inputs, None, goal, limits, kept), nodes)

    def partitioned(solution: Solution) -> Partition:
        return stages.spread_over(_devices(inputs, solution))

    return _Search(inputs=inputs, solve=solve, partitioned=partitioned, objective=objective).best()


def within_memory(inputs: PlannerInputs, stages: Partition) -> Placement:
    """Return stages whose devices are given, where the devices' memory suffices.

    Raises:
        NoFeasiblePlan: it does not.
    """
    placement = _placement(inputs, stages)
    if any(limit is not None for limit in inputs.limits):
        held = _held_bytes(inputs, placement)
        if not _keeps(held, inputs.limits):
            raise _refused(inputs, placement, held, 1)
    return placement


def resolved_schedule(inputs: PlannerInputs, stages: Partition) -> Schedule:
    """Return the schedule; "auto" becomes the least depths at full speed."""
    if inputs.schedule != "auto":
        return inputs.schedule
    return least_depths(inputs.pipeline(inputs.programs(stages, "1f1b")))


@frozen(kw_only=True)
class _Candidate:
    """A placement with every device's bytes, as the solver counts them and by the memory model."""

    placement: Placement
    tick_seconds: float
    solver_bytes: Sequence[int]
    held_bytes: Sequence[int]

    def corrected(self, limits: Sequence[int | None]) -> list[float | None]:
        """Return the limits in the solver's measure."""
        return [
            None if limit is None else limit * (counted / held if held else 1.0)
            for limit, counted, held in zip(limits, self.solver_bytes, self.held_bytes, strict=True)
        ]


@frozen(kw_only=True)
class _Search:
    """The search for the best placement that keeps the limits."""

    inputs: PlannerInputs
    solve: Callable[[Objective, _Limits], Solution | None]
    partitioned: Callable[[Solution], Partition]
    """Returns a solution's stages on its devices."""
    objective: Objective

    def best(self) -> Placement:
        """Return the best placement, by the memory model where memory decides."""
        if self.objective == "balanced" and all(limit is None for limit in self.inputs.limits):
            return self._placement(self._unlimited(self.objective))
        candidates = list(self._candidates())
        fitting = [candidate for candidate in candidates if _keeps(candidate.held_bytes, self.inputs.limits)]
        if not fitting:
            nearest = min(candidates, key=lambda one: max(_shares(one.held_bytes, self.inputs.limits)))
            if (moved := self._moved(nearest.placement)) is not None:
                return moved
            raise _refused(self.inputs, nearest.placement, nearest.held_bytes, len(candidates))
        if self.objective == "balanced":
            return min(fitting, key=lambda one: one.tick_seconds).placement
        best = min(fitting, key=lambda one: (max(one.held_bytes), one.tick_seconds)).placement
        guarantee = f"least memory on the fullest device, of {len(candidates)} cuts, by the memory model"
        return evolve(best, guarantee=guarantee)

    def _moved(self, placement: Placement) -> Placement | None:
        """Return a placement that fits after stages have moved between neighbouring devices, None where none was found."""

        def fullest(stages: Stages) -> float:
            held = _held_bytes(self.inputs, evolve(placement, stages=stages))
            return max(_shares(held, self.inputs.limits))

        stages = moved_until_fits(placement.stages, fullest)
        guarantee = "stages moved between devices until each kept its limit; another placement may be faster"
        return None if stages is None else evolve(placement, stages=stages, guarantee=guarantee)

    def _candidates(self) -> Iterator[_Candidate]:
        """Yield the solver's best without limits, for time and for memory, then its best under corrected limits."""
        latest = None
        for goal in ("balanced", "memory"):
            latest = self._candidate(self._unlimited(goal))
            yield latest
            if goal == self.objective == "balanced" and _keeps(latest.held_bytes, self.inputs.limits):
                return
        for _ in range(_CORRECTIONS):
            if latest is None or all(limit is None for limit in self.inputs.limits):
                return
            solution = self.solve(self.objective, latest.corrected(self.inputs.limits))
            if solution is None:
                return
            before, latest = latest, self._candidate(solution)
            if latest.placement.stages == before.placement.stages:
                return
            yield latest

    def _unlimited(self, objective: Objective) -> Solution:
        solution = self.solve(objective, [None] * len(self.inputs.limits))
        assert solution is not None, "there are no limits"
        return solution

    def _candidate(self, solution: Solution) -> _Candidate:
        placement = self._placement(solution)
        return _Candidate(
            placement=placement,
            tick_seconds=solution.costs.tick_seconds,
            solver_bytes=solution.costs.device_bytes,
            held_bytes=_held_bytes(self.inputs, placement),
        )

    def _placement(self, solution: Solution) -> Placement:
        return _placement(self.inputs, self.partitioned(solution), solution.guarantee)


def _placement(inputs: PlannerInputs, stages: Partition, guarantee: str = "") -> Placement:
    schedule = resolved_schedule(inputs, stages)
    return Placement(stages=stages.stages, devices=inputs.devices, schedule=schedule, guarantee=guarantee)


def _devices(inputs: PlannerInputs, solution: Solution) -> list[str]:
    return [inputs.devices[stage.device].name for stage in solution.costs.stages]


def _held_bytes(inputs: PlannerInputs, placement: Placement) -> list[int]:
    """Return the most bytes that every device would hold, by the memory model."""
    held = inputs.device_memory(inputs.programs(placement, placement.schedule))
    return [held[device.name].total if device.name in held else 0 for device in inputs.devices]


def _keeps(held: Sequence[int], limits: Sequence[int | None]) -> bool:
    return all(limit is None or used <= limit for used, limit in zip(held, limits, strict=True))


def _shares(held: Sequence[int], limits: Sequence[int | None]) -> list[float]:
    return [0.0 if limit is None else used / limit for used, limit in zip(held, limits, strict=True)]


def _refused(inputs: PlannerInputs, placement: Placement, held: Sequence[int], tried: int) -> NoFeasiblePlan:
    """Return the error: the device that lacks most, its bytes, and the node that needs most of them."""
    limits = inputs.limits
    shares = _shares(held, limits)
    worst = max(range(len(shares)), key=lambda index: shares[index])
    device = inputs.devices[worst]
    problem = partition_problem(inputs, None, "memory", [None] * len(limits))
    nodes = [name for stage in placement.stages if stage.device == device.name for name in stage.nodes]
    heaviest = max((problem.items[problem.index[name]] for name in nodes), key=lambda item: own_bytes(problem, item))
    cuts = f"of {tried} cuts tried, none fits; in the nearest, " if tried > 1 else ""
    message = (
        f"{cuts}device {shown(device.name)} would hold {size_text(held[worst])} and may hold "
        f"{size_text(limits[worst] or 0)}; its largest node is {shown(heaviest.name)}, with "
        f"{size_text(own_bytes(problem, heaviest))} by itself"
    )
    return NoFeasiblePlan(Problem(message=message, path=("partition", "memory")))
