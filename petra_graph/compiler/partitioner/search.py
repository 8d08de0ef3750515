"""The best cut of a problem, over its topological orders.

Objectives are lists: the first criterion is made least, then the next one among the cuts that remain.

    balanced   the slowest device's tick, the bytes on channels, the fullest device's bytes
    memory     the fullest device's bytes, the slowest device's tick, the bytes on channels

Each is one dynamic program, with the ones before as its limits. A limit is guessed from below: a cut found within a
guess is the best of all, since everything within the guess was considered; and a tight guess leaves a narrow band.

Decision: where stages outnumber devices, the devices' intervals come first and stages are cut inside them, since a
device's tick does not depend on them. Then the slowest stage is made fastest. Only if that breaks a limit on bytes, or
if bytes are the objective, intervals and numbers of stages are searched together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf
from typing import Literal

from attrs import evolve

from petra_graph.compiler.partitioner.dynamic_program import ContiguousCut, best_cut
from petra_graph.compiler.partitioner.interval_costs import CutCosts, Intervals, cut_costs
from petra_graph.compiler.partitioner.problem import Item, PartitionProblem
from petra_graph.compiler.partitioner.pruning import Limits, least_relaxed
from petra_graph.compiler.partitioner.stage_split import shares, split
from petra_graph.compiler.partitioner.topological_orders import has_one_order, orders

_GUESSES = (1.0, 1.003, 1.01, 1.05, 1.2, 1.6, 2.5, 6.0, inf)
_SMALL = 64
"""Up to this number of items, guessing costs more than it saves."""
_MOST_STEPS = 3e5
"""Steps of a dynamic program over numbers of stages a device, each over many items; some ten seconds at most."""


def find(problem: PartitionProblem) -> CutCosts | None:
    """Return the best cut of `problem`, None where none was found that keeps the limits."""
    variants = list(_variants(problem))
    best: CutCosts | None = None
    for order in orders(problem):
        for variant in variants:
            found = _Search(table=Intervals(variant, order)).best()
            if found is not None and _fits(problem, found):
                if best is None or _rank(problem, found) < _rank(problem, best):
                    best = found
                break
    return best


def _variants(problem: PartitionProblem) -> Iterator[PartitionProblem]:
    """Yield the problem; where limits may look tighter than they are, also relaxed ones, the best for its value first.

    With branches, a stage's real distance may be less than its place from the end, by which an order counts bytes. So
    first the limits are left out: if the best cut keeps them in fact, no other of its order is better.
    """
    if has_one_order(problem) or min(problem.limits) == inf:
        yield problem
        return
    free = [evolve(device, memory_bytes=None) for device in problem.devices]
    yield evolve(problem, devices=free)
    yield problem
    if problem.objective != "memory":
        yield evolve(problem, devices=free, objective="memory")


def _fits(problem: PartitionProblem, costs: CutCosts) -> bool:
    return all(used <= limit for used, limit in zip(costs.device_bytes, problem.limits, strict=True))


def own_bytes(problem: PartitionProblem, item: Item) -> int:
    """Return the least that a device needs for `item` alone, in the last stage."""
    rule = problem.depth_rule
    stored = rule.depth(0) * item.buffer_bytes + rule.versions(0) * item.version_bytes
    return item.resident_bytes + stored + item.working_bytes


def _rank(problem: PartitionProblem, costs: CutCosts) -> tuple[float, ...]:
    """Return the criteria in the objective's order; less is better."""
    if problem.objective == "balanced":
        return costs.tick_seconds, costs.channel_bytes, costs.peak_bytes, costs.slowest_stage_seconds
    return costs.peak_bytes, costs.tick_seconds, costs.channel_bytes, costs.slowest_stage_seconds


class _Search:
    """The best cut of one order."""

    def __init__(self, table: Intervals) -> None:
        self.table = table
        self.problem = table.problem

    def best(self) -> CutCosts | None:
        """Return it, None where none keeps the limits."""
        problem = self.problem
        if problem.objective == "balanced" and problem.stage_count > len(problem.devices):
            relaxed = self._device_cut()
            found = self._staged(relaxed, shares(self.table, relaxed.bounds, problem.stage_count), problem.limits)
            if found is not None:
                return found
        limits = Limits(seconds=inf, bytes=problem.limits, shares=self._shares(), stages=problem.stage_count)
        criteria: Sequence[Literal["seconds", "bytes"]] = (
            ("seconds",) if problem.objective == "balanced" else ("bytes", "seconds")
        )
        for criterion in criteria:
            cut = self._least(criterion, limits)
            if cut is None:
                return None
            limits = limits.within(criterion, cut.value)
        cut = best_cut(self.table, "channels", limits)
        assert cut is not None, "a cut kept these limits before"
        return self._staged(cut, cut.shares, limits.bytes)

    def _device_cut(self) -> ContiguousCut:
        """Return the devices' intervals with the least tick, then the fewest bytes on channels, whatever their stages."""
        count = len(self.problem.devices)
        limits = Limits(seconds=inf, bytes=(inf,) * count, shares=(range(1, 2),) * count, stages=count)
        cut = self._least("seconds", limits, with_bytes=False)
        assert cut is not None, "there are enough items"
        cut = best_cut(self.table, "channels", limits.within("seconds", cut.value), with_bytes=False)
        assert cut is not None, "a cut kept this limit before"
        return cut

    def _least(
        self, criterion: Literal["seconds", "bytes"], limits: Limits, *, with_bytes: bool = True
    ) -> ContiguousCut | None:
        if self.table.count <= _SMALL:
            return best_cut(self.table, criterion, limits, with_bytes=with_bytes)
        bound = least_relaxed(self.table, criterion, limits)
        if bound is None:
            return None
        for guess in _GUESSES if bound else (inf,):
            tight = limits.within(criterion, bound * guess)
            cut = best_cut(self.table, criterion, tight, with_bytes=with_bytes)
            if cut is not None:
                return cut
            if tight == limits:
                break
        return None

    def _staged(self, cut: ContiguousCut, parts: Sequence[int], limits: Sequence[float]) -> CutCosts | None:
        """Cut the devices' intervals into stages, and recheck the limits on their true costs."""
        left, stages, devices = self.problem.stage_count, [], []
        for device, ((first, last), share, limit) in enumerate(zip(pairwise(cut.bounds), parts, limits, strict=True)):
            left -= share
            begins = split(
                self.table,
                device,
                first,
                last,
                parts=share,
                after=left,
                room=limit - self.table.fixed_bytes(first, last),
            )
            if begins is None:
                return None
            stages += [self.table.order[a:b] for a, b in pairwise([*begins, last])]
            devices += [device] * share
        costs = cut_costs(self.problem, stages, devices)
        return costs if _fits(self.problem, costs) else None

    def _shares(self) -> tuple[range, ...]:
        """Return the numbers of stages that each device may have: all, or those near an even share if these are too many."""
        stages, count = self.problem.stage_count, len(self.problem.devices)
        spare = stages - count
        steps = 2 * self.table.count * (1 + self.table.count / 1000)
        even = [(device + 1) * stages // count - device * stages // count for device in range(count)]
        for width in (spare, 8, 4, 2, 1):
            if steps * min(spare + 1, 2 * width * count + 1) * min(spare + 1, 2 * width + 1) <= _MOST_STEPS:
                return tuple(range(max(1, one - width), min(spare + 1, one + width) + 1) for one in even)
        return tuple(range(one, one + 1) for one in even)
