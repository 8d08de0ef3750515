"""Cutting one device's interval into its stages, so that the slowest stage is fastest.

A device's tick does not depend on its stages, but its stages should balance too: a later run may place them on more
devices. Bisection: for a limit on a stage's seconds, the least bytes of buffers and versions follow by dynamic
programming from the last stage to the first, with range minima because a limit on work bounds how far a stage reaches.
The least feasible limit is the work of some interval, so bisection ends when no such number is left in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from attrs import define
from numpy.typing import NDArray

from petra_graph.compiler.partitioner.interval_costs import Array, Intervals
from petra_graph.compiler.partitioner.pruning import SLACK


def split(
    table: Intervals, device: int, first: int, last: int, *, parts: int, after: int, room: float
) -> tuple[int, ...] | None:
    """Return where each stage of [first, last) begins, None if buffers and versions exceed `room` in every cut.

    Args:
        first: position of the device's first item.
        last: position behind its last.
        parts: number of stages.
        after: number of stages on later devices.
        room: bytes for buffers and versions.
    """
    if parts == 1 and np.isinf(room):
        return (first,)
    work = table.work(device)
    one = _Interval(
        work=work[first : last + 1] - work[first],
        prefixes=[table.buffered(after + stage)[first : last + 1] for stage in range(parts)],
        openings=[table.opening(after + stage)[first : last + 1] for stage in range(parts)],
    )
    high = float(one.work[-1])
    if not one.fits(high, room):
        return None
    low = max(high / parts, float(np.diff(one.work).max())) / SLACK
    if one.fits(low, room):
        high = low
    while (higher := one.next_above(low)) < high:
        middle = max(higher, (low + high) / 2)
        if one.fits(middle, room):
            high = middle
        else:
            low = middle
    return tuple(first + begin for begin in one.begins(high))


def shares(table: Intervals, bounds: Sequence[int], stages: int) -> tuple[int, ...]:
    """Return each device's number of stages that makes the slowest stage fastest, bytes aside.

    By bisection over that stage's seconds: filling stages up in turn gives the number that a device needs.
    """
    devices = [(table.work(device), first, last) for device, (first, last) in enumerate(pairwise(bounds))]

    def needed(most: float) -> list[int]:
        return [_needed(work, first, last, most) for work, first, last in devices]

    low, high = 0.0, max(float(work[last] - work[first]) for work, first, last in devices)
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if sum(needed(middle)) <= stages else (middle, high)
    found = needed(high)
    seconds = [work[last] - work[first] for work, first, last in devices]
    for _ in range(stages - sum(found)):
        divisible = [device for device, (_, first, last) in enumerate(devices) if found[device] < last - first]
        found[max(divisible, key=lambda device: seconds[device] / found[device])] += 1
    return tuple(found)


def _needed(work: Array, first: int, last: int, most: float) -> int:
    """Return the number of stages of at most `most` work in [first, last); more than it has items if one is too long."""
    parts, position = 0, first
    while position < last:
        reached = min(int(np.searchsorted(work, work[position] + most, side="right")) - 1, last)
        if reached == position:
            return len(work)
        parts, position = parts + 1, reached
    return parts


@define(kw_only=True, eq=False)
class _Interval:
    """One device's interval, its positions counted from 0."""

    work: Array
    prefixes: Sequence[Array]
    openings: Sequence[Array]

    def least(self, most: float) -> list[Array]:
        """Return at r - 1, for every position, the least bytes of r stages to the end with `most` work each."""
        reach = np.searchsorted(self.work, self.work + most, side="right") - 1
        last = len(self.work) - 1
        found = [np.where(reach >= last, self.openings[0] - self.prefixes[0] + self.prefixes[0][last], np.inf)]
        found[0][last] = np.inf
        for prefix, opening in zip(self.prefixes[1:], self.openings[1:], strict=True):
            found.append(opening - prefix + _range_minima(prefix + found[-1], reach))
        return found

    def fits(self, most: float, room: float) -> bool:
        """Whether stages with `most` work each can have at most `room` bytes."""
        least = self.least(most)[-1][0]
        return bool(np.isfinite(least) and least <= room)

    def begins(self, most: float) -> list[int]:
        """Return where the stages begin that have the least bytes with `most` work each."""
        best = self.least(most)
        reach = np.searchsorted(self.work, self.work + most, side="right") - 1
        found = [0]
        for stage in range(len(best) - 1, 0, -1):
            begin = found[-1]
            later = self.prefixes[stage] + best[stage - 1]
            found.append(begin + 1 + int(np.argmin(later[begin + 1 : reach[begin] + 1])))
        return found

    def next_above(self, value: float) -> float:
        """Return the least work of an interval that is more than `value`."""
        ends = np.searchsorted(self.work, self.work + value, side="right")
        inside = ends < len(self.work)
        sums = self.work[ends[inside]] - self.work[inside]
        sums = sums[sums > value]
        return float(sums.min()) if sums.size else float("inf")


def _range_minima(values: Array, reach: NDArray[np.int64]) -> Array:
    """Return for every position p the least of `values` over (p, reach[p]], infinite where that is empty."""
    positions = np.arange(len(values))
    lengths = reach - positions
    found = np.full(len(values), np.inf)
    table, width = values, 1  # The least of `width` values from each position on.
    while True:
        here = (lengths >= width) & (lengths < 2 * width)
        found[here] = np.minimum(table[positions[here] + 1], table[reach[here] + 1 - width])
        if 2 * width > len(values):
            return found
        table, width = np.minimum(table[:-width], table[width:]), 2 * width
