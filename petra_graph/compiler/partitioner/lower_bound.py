"""A lower bound of every cut's tick, in the table's terms and in those of any time model that adds to them.

    one order      the least T at which the devices can hold all items: each takes some that it can work through in T, up
                   to a position whose messages take T at most
    branches       all work on all devices, or the longest item on the device that is fastest at it

Only messages between neighbours in the order count, in one direction at a time; on a chain these are all, and the bound is
the best cut's. Whatever a time model adds, waits, latencies or other messages, makes ticks longer.
"""

from __future__ import annotations

import numpy as np

from petra_graph.compiler.partitioner.interval_costs import Array
from petra_graph.compiler.partitioner.problem import PartitionProblem
from petra_graph.compiler.partitioner.topological_orders import has_one_order

EXACT = 1e-11
"""Relative width at which the bisection ends."""
_ROUNDING = 1e-12


def tick_bound(problem: PartitionProblem, width: float = EXACT) -> float:
    """Return seconds that no cut's tick is below, each device hosting a stage at least; the best such bound, less the relative `width`."""
    spread = _spread_bound(problem)
    return max(spread, _filled_bound(problem, spread, width)) if has_one_order(problem) else spread


def _spread_bound(problem: PartitionProblem) -> float:
    """Return the tick if work could be divided at will, each device as fast as it is at the item that suits it best."""
    seconds = np.array(problem.device_seconds)
    own = np.array([device.stage_seconds for device in problem.devices])
    longest = float((seconds + own[:, None]).min(axis=0).max())
    usual = seconds[0]
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = np.where(usual > 0, usual / seconds, 0.0).max(axis=1)
    if not np.isfinite(rates).all() or not rates.any():
        return longest
    return max(longest, float((usual.sum() + (own * rates).sum()) / rates.sum()))


def _filled_bound(problem: PartitionProblem, low: float, width: float) -> float:
    devices = range(len(problem.devices))
    work = {id(seconds): np.append(0.0, np.cumsum(seconds)) for seconds in problem.device_seconds}
    filled = [(work[id(problem.device_seconds[d])], problem.devices[d].stage_seconds) for d in devices]
    messages = _message_seconds(problem)
    high = max(float(messages.max()), *(float(total[-1]) + own for total, own in filled))
    if low >= high or _holds_all(filled, messages, low):
        return low
    while high - low > width * high:
        middle = (low + high) / 2
        low, high = (low, middle) if _holds_all(filled, messages, middle) else (middle, high)
    return low


def _message_seconds(problem: PartitionProblem) -> Array:
    """Return at each position the longer direction of the message between the items around it."""
    found = np.zeros(len(problem.items) + 1)
    for edge, (producer, consumer) in zip(problem.edges, problem.ends, strict=True):
        if consumer == producer + 1:
            size = max(edge.forward_bytes, edge.backward_bytes)
            found[consumer] = max(found[consumer], size / problem.link_bytes_per_second)
    return found


def _holds_all(filled: list[tuple[Array, float]], messages: Array, seconds: float) -> bool:
    """Whether the devices can hold all items, each one at least, if none may take more than `seconds`."""
    passable = messages <= seconds
    reached = np.zeros(len(messages), dtype=np.bool_)
    reached[0] = True
    for work, own in filled:
        starts = np.flatnonzero(reached)
        longest = work[starts] + (seconds - own) + _ROUNDING * work[-1]
        ends = np.searchsorted(work, longest, side="right")
        starts, ends = starts[ends > starts + 1] + 1, ends[ends > starts + 1]
        changes = np.bincount(starts, minlength=len(work) + 1) - np.bincount(ends, minlength=len(work) + 1)
        reached = (np.cumsum(changes)[:-1] > 0) & passable
    return bool(reached[-1])
