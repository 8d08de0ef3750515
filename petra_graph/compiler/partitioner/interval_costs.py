"""The costs of stages on devices: true ones of any cut, and those of all intervals of one topological order.

    order   x0 x1 x2 | x3 x4 | x5 ...      an interval is [j, i): here [0, 3), [3, 5)

Sums over items are differences of prefix sums, and largest working sets come from a table of powers of two. An edge
costs the interval that holds just one of its ends. Of the edges that cross position c, with `crossing[c]` bytes, those
that span an interval [j, i) do not count for it; the search goes through intervals by length, and `Spans` follows it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from petra_graph.compiler.partitioner.problem import PartitionProblem
from petra_graph.graph.node_graph import distances, stage_graph

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
        self.resident = _prefix([item.resident_bytes for item in items])
        self.versions = _prefix([item.version_bytes for item in items])
        self.buffers = _prefix(np.where(joined, 0.0, buffers))
        """Of items that cannot join the one before them in the order."""
        self.penalty = np.append(np.where(joined, buffers, 0.0), 0.0)
        """At position c, the buffer bytes that a cut there adds: c's own, where c would join the one before."""
        self.working_levels = _levels(np.array([item.working_bytes for item in items], dtype=np.float64))
        """At level k, the largest working set of the 2^k items from each position on."""
        self._kept: dict[int, Array] = {}
        self._work: dict[int, Array] = {}

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
        return len(self.order)

    def work(self, device: int) -> Array:
        """Return the prefix sums of seconds on a device."""
        seconds = self.problem.device_seconds[device]
        if id(seconds) not in self._work:  # Devices of one kind share it.
            self._work[id(seconds)] = _prefix([seconds[index] for index in self.order])
        return self._work[id(seconds)]

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


@frozen(kw_only=True)
class StageCosts:
    """A stage on its device."""

    items: tuple[str, ...]
    """Names, in the problem's order."""
    device: int
    """Its position in the problem's devices."""
    distance: int
    """Longest path to the last stage, counted in stages."""
    seconds: float
    """Work of a micro-batch on that device, without messages."""
    resident_bytes: int
    buffer_bytes: int
    version_bytes: int
    working_bytes: int


@frozen(kw_only=True)
class CutCosts:
    """Stages on devices with their costs."""

    stages: tuple[StageCosts, ...]
    """In topological order."""
    device_seconds: tuple[float, ...]
    """Each device's tick, with its messages."""
    device_bytes: tuple[int, ...]
    channel_bytes: int
    """Between devices, for each micro-batch, both ways."""

    @property
    def tick_seconds(self) -> float:
        return max(self.device_seconds)

    @property
    def peak_bytes(self) -> int:
        return max(self.device_bytes)

    @property
    def slowest_stage_seconds(self) -> float:
        """The tick with one device a stage, each of the same kind as the stage's own, and free links."""
        return max(stage.seconds for stage in self.stages)


def cut_costs(problem: PartitionProblem, stages: Sequence[Sequence[int]], devices: Sequence[int]) -> CutCosts:
    """Return the costs of `stages`, lists of items' positions in topological order, on `devices`, one a stage."""
    distance = distances(stage_graph(problem.graph, stages))
    placed = tuple(
        _stage_costs(problem, sorted(items), device, distance[index])
        for index, (items, device) in enumerate(zip(stages, devices, strict=True), start=1)
    )
    host = {index: device for items, device in zip(stages, devices, strict=True) for index in items}
    traffic, buffers = _channel_costs(problem, host)
    seconds, total = [], []
    for device in range(len(problem.devices)):
        own = [stage for stage in placed if stage.device == device]
        work = sum(stage.seconds for stage in own) + len(own) * problem.devices[device].stage_seconds
        seconds.append(max(work, max(traffic[device]) / problem.link_bytes_per_second))
        kept = sum(stage.resident_bytes + stage.buffer_bytes + stage.version_bytes for stage in own)
        total.append(kept + max((stage.working_bytes for stage in own), default=0) + buffers[device])
    return CutCosts(
        stages=placed,
        device_seconds=tuple(float(one) for one in seconds),
        device_bytes=tuple(total),
        channel_bytes=sum(map(sum, traffic)) // 2,
    )


def _stage_costs(problem: PartitionProblem, items: Sequence[int], device: int, distance: int) -> StageCosts:
    rule, own = problem.depth_rule, [problem.items[index] for index in items]
    # An item that joins the one before it in the stage stores nothing.
    stored = sum(
        problem.items[index].buffer_bytes
        for before, index in zip([None, *items], items, strict=False)
        if before is None or problem.joined[index] != before
    )
    return StageCosts(
        items=tuple(item.name for item in own),
        device=device,
        distance=distance,
        seconds=sum(problem.device_seconds[device][index] for index in items),
        resident_bytes=sum(item.resident_bytes for item in own),
        buffer_bytes=rule.depth(distance) * stored,
        version_bytes=rule.versions(distance) * sum(item.version_bytes for item in own),
        working_bytes=max(item.working_bytes for item in own),
    )


def _channel_costs(problem: PartitionProblem, host: dict[int, int]) -> tuple[list[list[int]], list[int]]:
    """Return for each device the bytes of its messages by kind, and the bytes of its channels' capacity.

    The kinds: from earlier devices, to earlier ones, from later ones, to later ones.
    """
    traffic, buffers = [[0] * 4 for _ in problem.devices], [0] * len(problem.devices)
    for edge, (producer, consumer) in zip(problem.edges, problem.ends, strict=True):
        sender, receiver = host[producer], host[consumer]
        if sender == receiver:
            continue
        for device, first in ((receiver, 0), (sender, 2)):
            traffic[device][first] += edge.forward_bytes
            traffic[device][first + 1] += edge.backward_bytes
        buffers[receiver] += problem.channel_capacity * edge.forward_bytes
        buffers[sender] += problem.channel_capacity * edge.backward_bytes
    return traffic, buffers
