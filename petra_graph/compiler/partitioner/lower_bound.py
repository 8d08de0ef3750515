"""A lower bound of every cut's tick, in the table's terms and in those of any time model that adds to them.

    one order      the least T at which the devices can hold all items: each takes some that it can work through in T, up
                   to a position whose messages take T at most
    branches       the same, each device taking the items that suit it best, wherever they stand; or the longest item on the device
                   that is fastest at it

Only messages between neighbours in the order count, in one direction at a time; on a chain these are all, and the bound is
the best cut's. Whatever a time model adds, waits, latencies or other messages, makes ticks longer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from petra_graph.compiler.partitioner.interval_costs import Array
from petra_graph.compiler.partitioner.problem import PartitionProblem
from petra_graph.compiler.partitioner.topological_orders import has_one_order

EXACT = 1e-11
"""Relative width at which the bisection ends."""
_ROUNDING = 1e-12
Places = NDArray[np.int64]
Marks = NDArray[np.bool_]
"""Of places."""


def tick_bound(problem: PartitionProblem, width: float = EXACT) -> float:
    """Return seconds that no cut's tick is below, each device hosting a stage at least; the best such bound, less the relative `width`."""
    seconds = np.array(problem.device_seconds)
    own = np.array([device.stage_seconds for device in problem.devices])
    longest = float((seconds + own[:, None]).min(axis=0).max())
    if has_one_order(problem):
        return filled_bound(works(problem), message_seconds(problem), longest, width)
    return _spread_bound(seconds, own, longest, width)


def _spread_bound(seconds: Array, own: Array, low: float, width: float) -> float:
    """Return the tick if work could be divided at will, each device taking those items at which it is fastest beside the first one.

    Args:
        seconds: of every item on every device.
        own: seconds of each device, whatever its items.
        low: seconds that no tick is below.
    """
    seconds = seconds[:, seconds.min(axis=0) > 0]  # What takes no time on some device is done there.
    if not seconds.size:
        return low
    best_first = np.argsort(seconds / seconds[0], axis=1, kind="stable")
    zero = np.zeros((len(seconds), 1))
    taken = np.hstack([zero, np.take_along_axis(seconds, best_first, axis=1).cumsum(axis=1)])
    # What is done then, in the first device's seconds.
    done = np.hstack([zero, seconds[0][best_first].cumsum(axis=1)])

    def holds_all(tick: float) -> bool:
        most = sum(float(np.interp(tick - one, *row)) for one, *row in zip(own, taken, done, strict=True))
        return most >= (1 - _ROUNDING) * float(done[0, -1])

    high = float((taken[:, -1] + own).max())
    return low if low >= high or holds_all(low) else _bisected(holds_all, low, high, width)


@frozen(kw_only=True, eq=False)
class Work:
    """A device's work on a chain."""

    seconds: Array
    """Of all items before each position."""
    stage_seconds: float
    """Of a stage, whatever its items."""

    def ends(self, seconds: float) -> Places:
        """Return, for each position at which the device may begin, the last one at which it may end, if it takes no more than `seconds`."""
        longest = self.seconds + (seconds - self.stage_seconds) + _ROUNDING * self.seconds[-1]
        found: Places = np.searchsorted(self.seconds, longest, side="right") - 1
        return found


def works(problem: PartitionProblem) -> Sequence[Work]:
    """Return the work of every device."""
    summed = {id(seconds): np.append(0.0, np.cumsum(seconds)) for seconds in problem.device_seconds}
    return [
        Work(seconds=summed[id(own)], stage_seconds=device.stage_seconds)
        for own, device in zip(problem.device_seconds, problem.devices, strict=True)
    ]


def filled_bound(row: Sequence[Work], messages: Array, low: float, width: float = EXACT) -> float:
    """Return the least seconds, `low` at least, in which a row of devices can hold all items, less the relative `width`."""
    high = max(float(messages.max()), *(float(one.seconds[-1]) + one.stage_seconds for one in row))
    if low >= high or _holds_all(row, messages, low):
        return low
    return _bisected(lambda seconds: _holds_all(row, messages, seconds), low, high, width)


def _bisected(holds_all: Callable[[float], bool], low: float, high: float, width: float) -> float:
    """Return seconds that are not enough, or just, `low` being too few and `high` enough."""
    while high - low > width * high:
        middle = (low + high) / 2
        low, high = (low, middle) if holds_all(middle) else (middle, high)
    return low


def message_seconds(problem: PartitionProblem) -> Array:
    """Return at each position the longer direction of the message between the items around it."""
    found = np.zeros(len(problem.items) + 1)
    for edge, (producer, consumer) in zip(problem.edges, problem.ends, strict=True):
        if consumer == producer + 1:
            size = max(edge.forward_bytes, edge.backward_bytes)
            found[consumer] = max(found[consumer], size / problem.link_bytes_per_second)
    return found


def behind(reached: Marks, ends: Places) -> Marks:
    """Return at which positions one device more can end, with one item at least, if it begins where the devices before it may end.

    The later a device begins, the later it may end: so only the latest beginning before a position matters.

    Args:
        reached: whether the devices before it may end at each position; rows of any number.
        ends: for each beginning, the last end.
    """
    places = np.arange(reached.shape[-1], dtype=np.int32)
    latest = np.maximum.accumulate(np.where(reached, places, -1), axis=-1)[..., :-1]
    found = np.zeros_like(reached)
    found[..., 1:] = (latest >= 0) & (ends[latest] >= places[1:])
    return found


def _holds_all(row: Sequence[Work], messages: Array, seconds: float) -> bool:
    """Whether the devices can hold all items, each one at least, if none may take more than `seconds`."""
    passable = messages <= seconds
    reached = np.zeros(len(messages), dtype=np.bool_)
    reached[0] = True
    for work in row:
        reached = behind(reached, work.ends(seconds)) & passable
    return bool(reached[-1])
