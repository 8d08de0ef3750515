"""The costs of all intervals of one topological order.

    order   x0 x1 x2 | x3 x4 | x5 ...      an interval is [j, i): here [0, 3), [3, 5)

Sums over items are differences of prefix sums, and largest working sets come from a table of powers of two. An edge
costs the interval that holds just one of its ends. Of the edges that cross position c, with `crossing[c]` bytes, those
that span an interval [j, i) do not count for it; the search goes through intervals by length, and `Spans` follows it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from petra_graph.compiler.partitioner.problem import PartitionProblem

Array = NDArray[np.float64]
FORWARD, BACKWARD = range(2)


class Intervals:
    """Sums of a problem along a topological order of its items; index c of a prefix sum is the sum before position c."""

    def __init__(self, problem: PartitionProblem, order: Sequence[int]) -> None:
        self.problem = problem
        self.order = tuple(order)
        items = [problem.items[index] for index in order]
        joined = [place > 0 and problem.joined[index] == order[place - 1] for place, index in enumerate(order)]
        buffers = np.array([item.buffer_bytes for item in items], dtype=np.float64)
        self.work = _prefix([item.seconds for item in items])
        self.resident = _prefix([item.resident_bytes for item in items])
        self.versions = _prefix([item.version_bytes for item in items])
        self.buffers = _prefix(np.where(joined, 0.0, buffers))
        """Of items that cannot join the one before them in the order."""
        self.penalty = np.append(np.where(joined, buffers, 0.0), 0.0)
        """At position c, the buffer bytes that a cut there adds: c's own, where c would join the one before."""
        self.working_levels = _levels(np.array([item.working_bytes for item in items], dtype=np.float64))
        """At level k, the largest working set of the 2^k items from each position on."""
        self._kept: dict[int, Array] = {}

        position = {index: place for place, index in enumerate(order)}
        ends = np.array([(position[a], position[b]) for a, b in problem.ends], dtype=np.int64).reshape(-1, 2)
        sizes = np.array([(edge.forward_bytes, edge.backward_bytes) for edge in problem.edges], dtype=np.float64)
        sizes = sizes.reshape(-1, 2).T
        changes = np.zeros((2, len(items) + 1))
        for row, size in zip(changes, sizes, strict=True):  # An edge crosses the positions after its start, to its end.
            np.add.at(row, ends[:, 0] + 1, size)
            np.subtract.at(row, ends[:, 1] + 1, size)
        self.crossing = np.cumsum(changes, axis=1)
        """Forward and backward bytes of the edges that cross each position."""
        lengths = ends[:, 1] - ends[:, 0]
        longest_first = np.argsort(-lengths, kind="stable")
        self.lengths = lengths[longest_first]
        """Each edge's length along the order, longest first; `starts` and `sizes` are in the same order."""
        self.starts = ends[longest_first, 0]
        self.sizes = sizes[:, longest_first]

    @property
    def count(self) -> int:
        """Number of items."""
        return len(self.order)

    def working(self, length: int, ends: slice) -> Array:
        """Return the largest working sets of the intervals of `length` that end at `ends`."""
        level = length.bit_length() - 1
        table, second = self.working_levels[level], 1 << level
        return np.maximum(
            table[ends.start - length : ends.stop - length], table[ends.start - second : ends.stop - second]
        )

    def buffered(self, distance: int) -> Array:
        """Return the prefix sums of buffers and versions in a stage at `distance`."""
        rule = self.problem.depth_rule
        return rule.depth(distance) * self.buffers + rule.versions(distance) * self.versions

    def kept(self, distance: int) -> Array:
        """Return the prefix sums of all that a stage at `distance` keeps."""
        if distance not in self._kept:
            self._kept[distance] = self.resident + self.buffered(distance)
        return self._kept[distance]

    def opening(self, distance: int) -> Array:
        """Return the bytes that a stage at `distance` which begins at each position adds to `buffered`."""
        return self.problem.depth_rule.depth(distance) * self.penalty

    def fixed_bytes(self, first: int, last: int) -> float:
        """Return the bytes of [first, last) on one device that its cuts into stages do not change."""
        spanning = (self.starts < first) & (self.starts + self.lengths >= last)
        forward = self.crossing[FORWARD, first] - self.sizes[FORWARD, spanning].sum()
        backward = self.crossing[BACKWARD, last] - self.sizes[BACKWARD, spanning].sum()
        working = self.working(last - first, slice(last, last + 1))[0]
        return float(
            self.resident[last] - self.resident[first] + working + self.problem.channel_capacity * (forward + backward)
        )


class Spans:
    """The edges that span the intervals of one length, for each end; lengths go up from 1."""

    def __init__(self, table: Intervals) -> None:
        self._table = table
        self.bytes = table.crossing.copy()

    def advance(self, length: int) -> bool:
        """Go on to the intervals of `length`, and return whether any edge spans one.

        An edge that starts at an interval's first item does not span it.
        """
        table = self._table
        starting = int(np.searchsorted(-table.lengths, -length, side="right"))
        for row, sizes in zip(self.bytes, table.sizes, strict=True):
            np.subtract.at(row, table.starts[:starting] + length, sizes[:starting])
        return bool(starting) and bool(table.lengths[0] > length)


def _prefix(values: Sequence[float] | Array) -> Array:
    return np.concatenate([[0.0], np.cumsum(np.asarray(values, dtype=np.float64))])


def _levels(values: Array) -> list[Array]:
    levels = [values]
    while (half := 1 << (len(levels) - 1)) * 2 <= len(values):
        last = levels[-1]
        levels.append(np.maximum(last[:-half], last[half:]))
    return levels
