"""The best contiguous cut of one order, by dynamic programming over intervals.

    best[d][s][j]     devices d, d+1, ... hold the items from position j on, in s stages
                      = the best over i > j and r of   cost(device d holds [j, i) in r stages, s - r stages after it)
                                                       combined with   best[d + 1][s - r][i]

Proof sketch. A contiguous cut is a sequence of intervals, one a device, and of cuts inside them. A device's seconds
depend on its interval alone; its bytes on its interval, on r, and on the stages after it, since these give every one
of its stages its distance. So each term above is exact, and "combined with" (largest of, or sum of) is monotone in the
rest: the best rest may replace any other. Costs need not grow with an interval, which those of messages and joined
buffers do not.

The bytes of r stages in [j, i) are least for the inner cuts c that minimise a sum. With a(delta) the prefix sum of
buffers at distance delta, and o(delta) the bytes that a stage which begins there adds, a stage [b, c) costs
a[c] - a[b] + o[b], so the best over inner cuts is a running minimum of (a[c] + the cost of [c, i) in one stage less).

It is fast because intervals are taken by length, for all ends at once, and only those that `pruning` leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from attrs import define, frozen
from numpy.typing import NDArray

from petra_graph.compiler.partitioner.interval_costs import Array, Intervals
from petra_graph.compiler.partitioner.pruning import Layer, Limits, layers, windows

Criterion = Literal["seconds", "bytes", "channels"]


@frozen(kw_only=True)
class ContiguousCut:
    """A contiguous cut: device d holds the positions from `bounds[d]` to `bounds[d + 1]`."""

    value: float
    """The criterion's: the largest seconds or bytes of a device, or the sum of the bytes on channels."""
    bounds: tuple[int, ...]
    shares: tuple[int, ...]
    """Number of stages of each device."""


@define(kw_only=True, eq=False)
class _State:
    """The best of devices d, d+1, ... for each first position, with the choice that leads to it."""

    value: Array
    peak: Array
    """The fullest device's bytes, where they decide between equal values."""
    uneven: Array
    """The sum of the devices' squared seconds, where that decides."""
    following: NDArray[np.int32]
    share: NDArray[np.int32]


def best_cut(
    table: Intervals, criterion: Criterion, limits: Limits, *, with_bytes: bool = True
) -> ContiguousCut | None:
    """Return the contiguous cut with the least value of `criterion` within `limits`, None if there is none.

    Args:
        criterion: "seconds" and "bytes" are the largest of a device; "channels" is the sum of the bytes that cross between
            devices, among equals the fullest device's bytes, and then the most even work.
        with_bytes: False ignores bytes altogether.
    """
    starts = windows(table, limits)
    if starts is None:
        return None
    states = {0: _blank(table.count)}
    states[0].value[-1] = states[0].peak[-1] = states[0].uneven[-1] = 0.0
    path = [states]
    for device in reversed(range(len(table.problem.devices))):
        states = _extended(
            table, criterion, limits, device=device, starts=starts[device], later=states, with_bytes=with_bytes
        )
        if not states:
            return None
        path.append(states)
    position, left = 0, limits.stages
    if left not in states or not np.isfinite(states[left].value[0]):
        return None
    value, bounds, shares = float(states[left].value[0]), [0], []
    for states in path[:0:-1]:
        state = states[left]
        share, position = int(state.share[position]), int(state.following[position])
        left -= share
        bounds.append(position)
        shares.append(share)
    return ContiguousCut(value=value, bounds=tuple(bounds), shares=tuple(shares))


def _extended(
    table: Intervals,
    criterion: Criterion,
    limits: Limits,
    *,
    device: int,
    starts: range,
    later: Mapping[int, _State],
    with_bytes: bool,
) -> dict[int, _State]:
    """Return the states of `device` before the devices of `later`, both by their number of stages."""
    reachable = np.flatnonzero(np.logical_or.reduce([np.isfinite(state.value) for state in later.values()]))
    if not reachable.size:
        return {}
    ends = range(int(reachable[0]), int(reachable[-1]) + 1)
    before = limits.shares[:device]
    fewest, most = sum(share.start for share in before), sum(share.stop - 1 for share in before)
    own_shares = {
        after: shares
        for after in later
        if (shares := [s for s in limits.shares[device] if fewest <= limits.stages - after - s <= most])
    }
    stage_bytes = {after: _StageBytes(table, ends, after, max(own_shares[after])) for after in own_shares if with_bytes}
    found: dict[int, _State] = {}
    for layer in layers(table, limits, device, starts, ends, with_bytes=with_bytes):
        for after, shares in own_shares.items():
            for share in shares:
                if share > layer.length:
                    break
                total = layer.fixed
                if with_bytes:
                    total = total + stage_bytes[after].least(layer, share)
                state = found.setdefault(after + share, _blank(table.count))
                _improve(
                    state, criterion, layer, rest=later[after], total=total, limit=limits.bytes[device], share=share
                )
    return found


def _improve(
    state: _State, criterion: Criterion, layer: Layer, *, rest: _State, total: Array, limit: float, share: int
) -> None:
    """Update the positions where an interval of `layer`, whose bytes are `total`, is better."""
    value = rest.value[layer.ends]
    if criterion == "channels":
        value = value + layer.leaving
    else:
        value = np.maximum(value, layer.seconds if criterion == "seconds" else total)
    value = np.where(layer.allowed & (total <= limit), value, np.inf)
    known = state.value[layer.begins]
    better = value < known
    if criterion == "channels":
        peak = np.maximum(rest.peak[layer.ends], total)
        uneven = rest.uneven[layer.ends] + layer.seconds**2
        known_peak, known_uneven = state.peak[layer.begins], state.uneven[layer.begins]
        equal = (value == known) & np.isfinite(value)
        better |= equal & ((peak < known_peak) | ((peak == known_peak) & (uneven < known_uneven)))
        np.copyto(known_peak, peak, where=better)
        np.copyto(known_uneven, uneven, where=better)
    if better.any():
        np.copyto(known, value, where=better)
        chosen = np.arange(layer.ends.start, layer.ends.stop, dtype=np.int32)
        np.copyto(state.following[layer.begins], chosen, where=better)
        state.share[layer.begins][better] = share


class _StageBytes:
    """The least bytes of buffers and versions of 1, 2, ... stages in an interval, by its end; lengths go up from 1."""

    def __init__(self, table: Intervals, ends: range, after: int, most: int) -> None:
        self._ends = ends
        self._length = 0
        self._prefixes = [table.buffered(after + stage) for stage in range(most)]
        self._openings = [table.opening(after + stage) for stage in range(most)]
        self._best = [np.full(table.count + 1, np.inf) for _ in range(most)]
        """At r, of r stages and of a further one before them up to its end."""
        self._least = [np.full(table.count + 1, np.inf) for _ in range(most)]
        """At r - 1, of r stages in the interval that ends at each position."""

    def least(self, layer: Layer, share: int) -> Array:
        """Return the bytes of `share` stages in the intervals of `layer`."""
        for length in range(self._length + 1, layer.length + 1):
            self._advance(length)
        self._length = layer.length
        return self._least[share - 1][layer.ends]

    def _advance(self, length: int) -> None:
        low, high = max(self._ends.start, length), self._ends.stop
        if low >= high:
            return
        ends, begins = slice(low, high), slice(low - length, high - length)
        for stage, (prefix, opening) in enumerate(zip(self._prefixes, self._openings, strict=True)):
            upto = prefix[ends] if stage == 0 else self._best[stage][ends]
            self._least[stage][ends] = opening[begins] - prefix[begins] + upto
        for stage in range(1, len(self._least)):
            shorter = self._prefixes[stage][begins] + self._least[stage - 1][ends]
            np.minimum(self._best[stage][ends], shorter, out=self._best[stage][ends])


def _blank(count: int) -> _State:
    return _State(
        value=np.full(count + 1, np.inf),
        peak=np.full(count + 1, np.inf),
        uneven=np.full(count + 1, np.inf),
        following=np.zeros(count + 1, dtype=np.int32),
        share=np.zeros(count + 1, dtype=np.int32),
    )
