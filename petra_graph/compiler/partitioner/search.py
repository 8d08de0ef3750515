"""The best cut of a task, over its topological orders.

Objectives are lists: what comes first is made least, then what comes next among those.

    balanced   the slowest device's tick, the bytes on wires, the fullest device's bytes
    memory     the fullest device's bytes, the slowest device's tick, the bytes on wires

Each is one dynamic program, with the ones before as its limits. A limit is guessed from below: a cut found within a
guess is the best of all, since everything within the guess was considered; and a tight guess leaves a narrow band.

Decision: where stages outnumber devices, the devices' intervals come first and stages are cut inside them, since a
device's tick does not depend on them. Then the slowest stage is made fastest. Only if that breaks a limit on bytes, or
if bytes are the objective, intervals and numbers of stages are searched together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal

from attrs import evolve, frozen

from petra_graph.compiler.partitioner.dynamic_program import ContiguousCut, best_cut
from petra_graph.compiler.partitioner.evaluate import Costs, evaluate
from petra_graph.compiler.partitioner.interval_costs import Intervals, intervals
from petra_graph.compiler.partitioner.orders import has_one_order, orders
from petra_graph.compiler.partitioner.problem import Item, PartitionProblem
from petra_graph.compiler.partitioner.pruning import Limits, least_relaxed
from petra_graph.compiler.partitioner.stage_split import shares, split

INFINITY = float("inf")
_GUESSES = (1.0, 1.003, 1.01, 1.05, 1.2, 1.6, 2.5, 6.0, INFINITY)
_SMALL = 64
"""Up to so many items, guessing costs more than it saves."""
_MOST_STEPS = 3e5
"""Steps of a dynamic program over numbers of stages a device, each over many items; some ten seconds at most."""


@frozen(kw_only=True)
class Solution:
    """The best cut found."""

    costs: Costs
    value: float
    """The objective's: seconds of the slowest device, or bytes of the fullest."""
    bound: float
    """No cut whatever has less."""
    guarantee: str
    """How good the cut is, for people."""


def find(task: PartitionProblem) -> Solution | None:
    """Return the best cut of `task`, None where none was found that keeps the limits."""
    tried, exact = orders(task), has_one_order(task)
    variants = list(_variants(task, exact=exact))
    narrowed = False
    best: Costs | None = None
    for order in tried:
        for variant in variants:
            one = _Search(table=intervals(variant, order))
            found = one.best()
            narrowed |= one.narrowed
            if found is not None and _fits(task, found):
                if best is None or _rank(task, found) < _rank(task, best):
                    best = found
                break
    if best is None:
        return None
    value = best.tick_seconds if task.objective == "balanced" else float(best.peak_bytes)
    bound = seconds_bound(task) if task.objective == "balanced" else bytes_bound(task)
    among_what = _among(task, len(tried), exact=exact, narrowed=narrowed)
    return Solution(costs=best, value=value, bound=bound, guarantee=_guarantee(task, among_what, value, bound))


def _variants(task: PartitionProblem, *, exact: bool) -> Iterator[PartitionProblem]:
    """Yield the task, or where limits may look tighter than they are, what may keep them, the best for its value first.

    With branches, a stage's real distance may be less than its place from the end, by which an order counts bytes. So
    first the limits are left out: if the best cut keeps them in fact, no other of its order is better.
    """
    if exact or min(task.limits) == INFINITY:
        yield task
        return
    free = [evolve(device, memory_bytes=None) for device in task.devices]
    yield evolve(task, devices=free)
    yield task
    if task.objective != "memory":
        yield evolve(task, devices=free, objective="memory")


def _fits(task: PartitionProblem, costs: Costs) -> bool:
    return all(used <= limit for used, limit in zip(costs.device_bytes, task.limits, strict=True))


def seconds_bound(task: PartitionProblem) -> float:
    """Return a tick that no cut is below: all work on all devices, or the longest item on the fastest."""
    speeds = [device.speed for device in task.devices]
    work = [item.seconds for item in task.items]
    return max(sum(work) / sum(speeds), max(work) / max(speeds))


def bytes_bound(task: PartitionProblem) -> float:
    """Return a peak that no cut is below: everything in one place spread evenly, or the largest item."""
    kept = sum(item.resident_bytes + task.ahead.versions(0) * item.version_bytes for item in task.items)
    kept += task.ahead.depth(0) * sum(
        item.buffer_bytes for item, before in zip(task.items, task.joined, strict=True) if before is None
    )
    return max(kept / len(task.devices), *(item.resident_bytes + item.working_bytes for item in task.items))


def own_bytes(task: PartitionProblem, item: Item) -> int:
    """Return the least that a device needs for `item` alone, in the last stage."""
    ahead = task.ahead
    stored = ahead.depth(0) * item.buffer_bytes + ahead.versions(0) * item.version_bytes
    return item.resident_bytes + stored + item.working_bytes


def _rank(task: PartitionProblem, costs: Costs) -> tuple[float, ...]:
    balanced = (costs.tick_seconds, costs.channel_bytes, costs.peak_bytes, costs.slowest_stage_seconds)
    in_memory = (costs.peak_bytes, costs.tick_seconds, costs.channel_bytes, costs.slowest_stage_seconds)
    return balanced if task.objective == "balanced" else in_memory


class _Search:
    """The best cut of one order."""

    def __init__(self, table: Intervals) -> None:
        self.table = table
        self.task = table.task
        self.narrowed = False
        """Whether there was no time for every number of stages a device."""

    def best(self) -> Costs | None:
        """Return it, None where none keeps the limits."""
        task = self.task
        if task.objective == "balanced" and task.stage_count > len(task.devices):
            relaxed = self._device_cut()
            found = self._staged(relaxed, shares(self.table, relaxed.bounds, task.stage_count), task.limits)
            if found is not None:
                return found
        limits = Limits(seconds=INFINITY, bytes=task.limits, shares=self._shares(), stages=task.stage_count)
        criteria: Sequence[Literal["seconds", "bytes"]] = (
            ("seconds",) if task.objective == "balanced" else ("bytes", "seconds")
        )
        for criterion in criteria:
            cut = self._least(criterion, limits)
            if cut is None:
                return None
            limits = limits.within(criterion, cut.value)
        cut = best_cut(self.table, "channels", limits)
        assert cut is not None, "what kept the limits a moment ago"
        return self._staged(cut, cut.shares, limits.bytes)

    def _device_cut(self) -> ContiguousCut:
        """Return the devices' intervals with the least tick, then the fewest bytes on wires, whatever their stages."""
        count = len(self.task.devices)
        limits = Limits(seconds=INFINITY, bytes=(INFINITY,) * count, shares=(range(1, 2),) * count, stages=count)
        cut = self._least("seconds", limits, with_bytes=False)
        assert cut is not None, "there are items enough"
        cut = best_cut(self.table, "channels", limits.within("seconds", cut.value), with_bytes=False)
        assert cut is not None, "what kept the limit a moment ago"
        return cut

    def _least(
        self, criterion: Literal["seconds", "bytes"], limits: Limits, *, with_bytes: bool = True
    ) -> ContiguousCut | None:
        if self.table.count <= _SMALL:
            return best_cut(self.table, criterion, limits, with_bytes=with_bytes)
        bound = least_relaxed(self.table, criterion, limits)
        if bound is None:
            return None
        for guess in _GUESSES if bound else (INFINITY,):
            tight = limits.within(criterion, bound * guess)
            cut = best_cut(self.table, criterion, tight, with_bytes=with_bytes)
            if cut is not None:
                return cut
            if tight == limits:
                break
        return None

    def _staged(self, cut: ContiguousCut, parts: Sequence[int], limits: Sequence[float]) -> Costs | None:
        """ContiguousCut the devices' intervals into stages, and recheck the limits on what they really cost."""
        left, stages, devices = self.task.stage_count, [], []
        for device, ((first, last), share, limit) in enumerate(zip(pairwise(cut.bounds), parts, limits, strict=True)):
            left -= share
            begins = split(
                self.table, first, last, parts=share, after=left, room=limit - self.table.fixed_bytes(first, last)
            )
            if begins is None:
                return None
            stages += [self.table.order[a:b] for a, b in pairwise([*begins, last])]
            devices += [device] * share
        costs = evaluate(self.task, stages, devices)
        return costs if _fits(self.task, costs) else None

    def _shares(self) -> tuple[range, ...]:
        """Return how many stages each device may have: any number, or those near an even one if that is too many."""
        stages, count = self.task.stage_count, len(self.task.devices)
        spare = stages - count
        steps = 2 * self.table.count * (1 + self.table.count / 1000)
        even = [(device + 1) * stages // count - device * stages // count for device in range(count)]
        for width in (spare, 8, 4, 2, 1):
            if steps * min(spare + 1, 2 * width * count + 1) * min(spare + 1, 2 * width + 1) <= _MOST_STEPS:
                return tuple(range(max(1, one - width), min(spare + 1, one + width) + 1) for one in even)
            self.narrowed = True
        return tuple(range(one, one + 1) for one in even)


def _among(task: PartitionProblem, tried: int, *, exact: bool, narrowed: bool) -> str:
    """Say which cuts were considered; nothing where all were."""
    parts = [] if exact else [f"{tried} topological orders"]
    if not exact and (task.objective == "memory" or min(task.limits) < INFINITY):
        parts.append("bytes counted at a stage's place from the end, or limits checked afterwards")
    if narrowed:
        parts.append("nearly even numbers of stages a device")
    return ", ".join(parts)


def _guarantee(task: PartitionProblem, among: str, value: float, bound: float) -> str:
    what = "slowest device's tick" if task.objective == "balanced" else "fullest device's memory"
    if not among:
        return f"optimal: no cut has a smaller {what}"
    gap = f"; no cut at all is more than {1 - bound / value:.1%} below it" if bound else ""
    return f"the smallest {what} of all cuts with {among}{gap}"
