"""The intervals that one device may hold, with their costs, by length.

Without messages and without the buffers that a cut adds, seconds and bytes of an interval grow with it: its relaxed
costs. So limits on them bound the lengths of a device's intervals. Filling the devices up in turn, from the end or from
the start, then reaches as far as any cut can: that bounds where a device's interval may begin, and shows that limits
are too tight for any cut. Intervals outside this band break a limit even at relaxed costs, so no optimum is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from petra_graph.compiler.partitioner.interval_costs import BACKWARD, FORWARD, Array, Intervals, Spans

SLACK = 1 + 1e-9
"""Seconds are sums of rounded numbers: ticks this close count as equal."""
_ROUNDING = 1e-12
_RELAXED = 1e-4


@frozen(kw_only=True)
class Limits:
    """Limits of every device."""

    seconds: float
    bytes: Sequence[float]
    """A limit a device."""
    shares: Sequence[range]
    """Numbers of stages that each device may have."""
    stages: int
    """Their number in all."""

    def within(self, criterion: Literal["seconds", "bytes"], value: float) -> Limits:
        """Return these limits with no more than `value` seconds or bytes on any device."""
        if criterion == "seconds":
            return evolve(self, seconds=min(self.seconds, value * SLACK))
        return evolve(self, bytes=tuple(min(limit, value) for limit in self.bytes))

    def fewest_after(self, device: int) -> int:
        return sum(share.start for share in self.shares[device + 1 :])


@frozen(kw_only=True)
class Layer:
    """A device's intervals of one length."""

    length: int
    begins: slice
    ends: slice
    seconds: Array
    """The device's tick."""
    allowed: NDArray[np.bool_]
    """Whether that is within the limit."""
    fixed: Array
    """Bytes that the cuts into stages do not change."""
    leaving: Array
    """Bytes on the channels to later devices, both ways."""


def layers(
    table: Intervals, limits: Limits, device: int, starts: range, ends: range, *, with_bytes: bool
) -> Iterator[Layer]:
    """Yield the intervals that `device` may hold, beginning at `starts` and ending at `ends`, shortest first.

    Without `with_bytes`, `fixed` is zero.
    """
    problem = table.problem
    work = table.work(device)
    band = _band(table, limits, device)
    spans = Spans(table)
    for length, possible in enumerate(band, start=1):
        spanning = spans.advance(length)
        low = max(starts.start + length, possible.start, ends.start)
        high = min(starts.stop + length, possible.stop, ends.stop)
        if low >= high:
            continue
        at, begins = slice(low, high), slice(low - length, high - length)
        entering, leaving = table.crossing[:, begins], table.crossing[:, at]
        if spanning:
            across = spans.bytes[:, at]
            entering, leaving = entering - across, leaving - across
        messages = np.maximum(entering, leaving).max(axis=0) / problem.link_bytes_per_second
        seconds = np.maximum(work[at] - work[begins] + problem.devices[device].stage_seconds, messages)
        allowed = seconds <= limits.seconds
        if not allowed.any():
            continue
        fixed = np.zeros(high - low)
        if with_bytes:
            fixed += table.resident[at] - table.resident[begins] + table.working(length, at)
            fixed += problem.channel_capacity * (entering[FORWARD] + leaving[BACKWARD])
        yield Layer(
            length=length,
            begins=begins,
            ends=at,
            seconds=seconds,
            allowed=allowed,
            fixed=fixed,
            leaving=leaving[FORWARD] + leaving[BACKWARD],
        )


def windows(table: Intervals, limits: Limits) -> tuple[range, ...] | None:
    """Return where each device's interval may begin, None if nothing keeps the limits."""
    first = _filled_from_the_end(table, limits)
    if first[0] > 0:
        return None
    found, position = [range(1)], 0
    for device in range(1, len(first)):
        position = _reached(table, limits, device - 1, position, 1)
        last = table.count - sum(share.start for share in limits.shares[device:])
        fewest = sum(share.start for share in limits.shares[:device])
        found.append(range(max(first[device], fewest), min(position, last) + 1))
    return tuple(found)


def least_relaxed(table: Intervals, criterion: Literal["seconds", "bytes"], limits: Limits) -> float | None:
    """Return the least value of `criterion` within `limits`, None if nothing keeps them.

    It is the least at relaxed costs, or up to a part in ten thousand more.
    """
    if _filled_from_the_end(table, limits)[0] > 0:
        return None
    low, everything = 0.0, slice(table.count, table.count + 1)
    if criterion == "seconds":
        high = max(float(table.work(device)[-1]) for device in range(len(table.problem.devices)))
    else:
        kept = table.resident[-1] + table.buffered(limits.stages)[-1]
        high = float(kept + table.working(table.count, everything)[0])
    while high - low > _RELAXED * high:
        middle = (low + high) / 2
        if _filled_from_the_end(table, limits.within(criterion, middle))[0] > 0:
            low = middle
        else:
            high = middle
    return high


def _filled_from_the_end(table: Intervals, limits: Limits) -> list[int]:
    """Return for every device the first position that it and those after it reach."""
    position, found = table.count, []
    for device in reversed(range(len(table.problem.devices))):
        position = _reached(table, limits, device, position, -1)
        found.append(position)
    return found[::-1]


def _reached(table: Intervals, limits: Limits, device: int, position: int, step: int) -> int:
    """Return the end of the longest relaxed interval of `device` from `position`, down or up."""
    return position + step * int(_lengths(table, limits, device, np.array([position]), step)[0])


def _lengths(
    table: Intervals, limits: Limits, device: int, positions: NDArray[np.int64], step: int
) -> NDArray[np.int64]:
    """Return the longest relaxed interval of `device` that ends (step -1) or begins (step 1) at each position.

    Binary lifting: try to add 2^k items, for k downwards.
    """
    work, sums = table.work(device), table.kept(limits.fewest_after(device))
    reach = limits.seconds * SLACK + _ROUNDING * work[-1]
    room = limits.bytes[device]
    at, largest = positions.copy(), np.zeros(len(positions))
    for level, of_level in reversed(list(enumerate(table.working_levels))):
        size = 1 << level
        to = at + step * size
        possible = (to >= 0) & (to <= table.count)
        to = np.where(possible, to, at)
        starts = np.minimum(np.minimum(at, to), table.count - size)
        working = np.maximum(largest, of_level[starts])
        possible &= np.abs(work[to] - work[positions]) <= reach
        possible &= np.abs(sums[to] - sums[positions]) + working <= room
        at, largest = np.where(possible, to, at), np.where(possible, working, largest)
    lengths: NDArray[np.int64] = np.abs(at - positions)
    return lengths


def _band(table: Intervals, limits: Limits, device: int) -> list[range]:
    """Return for every length from 1 the ends of the relaxed intervals that keep the limits."""
    positions = np.arange(table.count + 1)
    lengths = _lengths(table, limits, device, positions, -1)
    first = np.full(lengths.max() + 1, table.count + 1)
    last = np.full(lengths.max() + 1, -1)
    np.minimum.at(first, lengths, positions)
    np.maximum.at(last, lengths, positions)
    first = np.minimum.accumulate(first[::-1])[::-1]
    last = np.maximum.accumulate(last[::-1])[::-1]
    return [range(int(a), int(b) + 1) for a, b in zip(first[1:], last[1:], strict=True)]
