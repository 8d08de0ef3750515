"""The best order of unlike devices on a chain, where they are too many to try every order.

Each device takes items from where the one before it ended. What some devices can hold together, if none may take more than T seconds,
follows from how many of each kind they are, for every order of them at once:

    how many of each kind, and where they may end --one device more of some kind--> the same

The least T is found by bisection, and then lowered to that of the order that was found, until no order has less.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from attrs import frozen

from petra_graph.compiler.partitioner.interval_costs import Array
from petra_graph.compiler.partitioner.lower_bound import Marks, Places, Work, behind, filled_bound

_MOST = 200_000
"""Numbers of devices of each kind."""
_COARSE, _EQUAL = 1e-3, 1e-10
"""The relative widths at which the bisection ends, and below which seconds are equal."""


@frozen(kw_only=True, eq=False)
class Kind:
    """Devices of one speed."""

    devices: Sequence[int]
    inner: Work
    """Of a device that is not the last."""
    last: Work
    """Of the last device."""


@frozen(kw_only=True)
class BestOrder:
    """An order of devices."""

    devices: tuple[int, ...]
    bound: float
    """No order's seconds are below."""


def best_order(kinds: Sequence[Kind], used: int, messages: Array, low: float) -> BestOrder | None:
    """Return the order of `used` devices that can hold all items of a chain in the least seconds; None for too many kinds.

    Args:
        kinds: the devices, `used` or more.
        messages: seconds of the message at each position.
        low: seconds that no order is below.
    """
    if prod(len(kind.devices) + 1 for kind in kinds) > _MOST:
        return None
    rows = _Rows(kinds=kinds, used=used, messages=messages)
    known, best = low, rows.first
    high = rows.seconds(best, known)
    while high - low > _COARSE * high:
        middle = (low + high) / 2
        found = rows.within(middle)
        best, low, high = (best, middle, high) if found is None else (found, low, rows.seconds(found, known))
    while high > known and (found := rows.within((1 - _EQUAL) * high)) is not None:
        best, high = found, rows.seconds(found, known)
    free = [iter(kind.devices) for kind in kinds]
    return BestOrder(devices=tuple(next(free[kind]) for kind in best), bound=max(known, (1 - _EQUAL) * high))


@frozen(kw_only=True)
class _Rows:
    """All rows of devices, by their kinds."""

    kinds: Sequence[Kind]
    used: int
    messages: Array

    @property
    def first(self) -> tuple[int, ...]:
        """Some row."""
        return tuple(kind for kind, one in enumerate(self.kinds) for _ in one.devices)[: self.used]

    def seconds(self, row: Sequence[int], low: float) -> float:
        """Return the least seconds in which a row can hold all items, not less than `low`."""
        works = [*(self.kinds[kind].inner for kind in row[:-1]), self.kinds[row[-1]].last]
        return filled_bound(works, self.messages, low)

    def within(self, seconds: float) -> tuple[int, ...] | None:
        """Return a row that can hold all items, if no device may take more than `seconds`."""
        passable = self.messages <= seconds
        ends = [kind.inner.ends(seconds) for kind in self.kinds]
        counts, reached = np.zeros((1, len(self.kinds)), dtype=np.int64), np.eye(1, len(passable), dtype=np.bool_)
        layers = [(counts, reached)]
        for _ in range(self.used - 1):
            counts, reached = self._one_more(counts, reached, ends, passable)
            layers.append((counts, reached))
        for kind, one in enumerate(self.kinds):
            holds = reached[:, :-1] & (one.last.ends(seconds)[:-1] == len(passable) - 1)
            for row in np.flatnonzero((counts[:, kind] < len(one.devices)) & holds.any(axis=1)):
                return (*self._back(layers, ends, counts[row], int(np.argmax(holds[row]))), kind)
        return None

    def _one_more(
        self, counts: Places, reached: Marks, ends: Sequence[Places], passable: Marks
    ) -> tuple[Places, Marks]:
        """Return how many of each kind there can be with one device more, and where they may end."""
        free = [counts[:, kind] < len(one.devices) for kind, one in enumerate(self.kinds)]
        one_more = np.eye(len(self.kinds), dtype=np.int64)
        rows = np.concatenate([counts[some] + one_more[kind] for kind, some in enumerate(free)])
        where = np.concatenate([behind(reached[some], ends[kind]) & passable for kind, some in enumerate(free)])
        order = np.lexsort(rows.T)
        order = order[where[order].any(axis=1)]
        rows, where = rows[order], where[order]
        first = np.flatnonzero(np.append(True, (rows[1:] != rows[:-1]).any(axis=1)))[: len(rows)]
        return rows[first], np.logical_or.reduceat(where, first) if len(rows) else where

    def _back(
        self, layers: Sequence[tuple[Places, Marks]], ends: Sequence[Places], counts: Places, end: int
    ) -> tuple[int, ...]:
        """Return the kinds of devices that end at a position, of each kind as many as `counts` has."""
        kinds: list[int] = []
        for before, reached in reversed(layers[:-1]):
            kind, end = next(
                (int(kind), int(begins[0]))
                for kind in np.flatnonzero(counts)
                for row in np.flatnonzero((before == counts - (np.arange(len(counts)) == kind)).all(axis=1))
                if len(begins := np.flatnonzero(reached[row, :end] & (ends[int(kind)][:end] >= end)))
            )
            counts = counts - (np.arange(len(counts)) == kind)
            kinds.insert(0, kind)
        return tuple(kinds)
