"""The solver's proposals: stages on devices within memory limits, as the memory model has found them.

The solver adds bytes up node by node; the memory model goes through the operations of each device, and is right. So the
solver gets limits in its own measure: the limit times the solver's bytes over the memory model's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf

from attrs import frozen

from petra_graph.compiler.partitioner.interval_costs import CutCosts
from petra_graph.compiler.partitioner.problem import Objective
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.program.placement import Placement

_CORRECTIONS = 6
"""Runs of the solver with corrected limits, at most."""
Limits = Sequence[float | None]
"""Of every device, in bytes as the solver counts them."""


@frozen(kw_only=True)
class Candidate:
    """A placement with every device's bytes, as the solver counts them and by the memory model."""

    inputs: PlannerInputs
    """With the devices among which the solver chose."""
    placement: Placement
    held_bytes: Sequence[int]
    solver_bytes: Sequence[int] = ()

    @property
    def fits(self) -> bool:
        return keeps(self.held_bytes, self.inputs.limits)

    def corrected(self, limits: Limits) -> Limits:
        """Return limits in the solver's measure."""
        return [
            None if limit is None else limit * (counted / held if held else 1.0)
            for limit, counted, held in zip(limits, self.solver_bytes, self.held_bytes, strict=True)
        ]


@frozen(kw_only=True)
class Proposals:
    """The solver on some devices."""

    inputs: PlannerInputs
    solve: Callable[[Objective, Limits], CutCosts | None]
    placed: Callable[[CutCosts], Placement]
    objective: Objective

    def unlimited(self) -> Iterator[Candidate]:
        """Yield the solver's best without limits: for time, and for memory where that is the objective or the first does not fit."""
        for goal in ("balanced", "memory"):
            solution = self.solve(goal, [None] * len(self.inputs.devices))
            assert solution is not None, "there are no limits"
            candidate = self._candidate(solution)
            yield candidate
            if goal == self.objective == "balanced" and candidate.fits:
                return

    def corrected(
        self, goal: Objective, latest: Candidate, limits: Callable[[], Limits] | None = None
    ) -> Iterator[Candidate]:
        """Yield the solver's best under limits that are corrected by the candidate before, `latest` at first, until it finds none or the same."""
        for _ in range(_CORRECTIONS):
            solution = self.solve(goal, latest.corrected(self.inputs.limits if limits is None else limits()))
            found = latest if solution is None else self._candidate(solution)
            if found.placement.stages == latest.placement.stages:
                return
            yield (latest := found)

    def _candidate(self, solution: CutCosts) -> Candidate:
        placement = self.placed(solution)
        unlimited = self.objective == "balanced" and all(limit is None for limit in self.inputs.limits)
        return Candidate(
            inputs=self.inputs,
            placement=placement,
            solver_bytes=solution.device_bytes,
            held_bytes=[0] * len(self.inputs.devices) if unlimited else held_bytes(self.inputs, placement),
        )


def held_bytes(inputs: PlannerInputs, placement: Placement, most: Sequence[float] = ()) -> list[int]:
    """Return the most bytes that every device would hold, by the memory model.

    Args:
        most: bytes of every device; where one would hold more, the result says no more than that.
    """
    names = [device.name for device in inputs.devices]
    enough = dict(zip(names, most or [inf] * len(names), strict=True))
    held = inputs.device_memory(inputs.placed(placement), enough)
    return [held[device.name].total if device.name in held else 0 for device in inputs.devices]


def fits(inputs: PlannerInputs, placement: Placement) -> bool:
    """Whether the devices' memory suffices for a placement."""
    limits = inputs.limits
    most = [inf if limit is None else limit for limit in limits]
    return all(limit is None for limit in limits) or keeps(held_bytes(inputs, placement, most), limits)


def keeps(held: Sequence[int], limits: Sequence[int | None]) -> bool:
    return all(limit is None or used <= limit for used, limit in zip(held, limits, strict=True))


def shares(held: Sequence[int], limits: Sequence[int | None]) -> list[float]:
    return [0.0 if limit is None else used / limit for used, limit in zip(held, limits, strict=True)]
