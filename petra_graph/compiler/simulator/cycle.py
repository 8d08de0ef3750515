"""The exact period of a graph of waits: its largest ratio of seconds to periods over all cycles.

A full pipeline ends up repeating itself, and no faster than any of its cycles allows (Baccelli, Cohen, Olsder and
Quadrat 1992, *Synchronization and Linearity*, theorem 2.23). The largest ratio is found as Dinkelbach would: take a
lower bound, look for a cycle that takes longer, take its ratio as the next bound. Longest paths are swept in the order
of the nodes, in which few paths run backwards, so that a few sweeps settle graphs of thousands of stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from attrs import frozen

from petra_graph.compiler.simulator.waits import Precedence, PrecedenceGraph

_ROUNDING = 1e-12
"""Relative to a period and the longest wait: what sums of floats may be off by."""


@frozen(kw_only=True)
class Critical:
    """The slowest cycle."""

    seconds: float
    """Of one period; infinite where the cycle can never begin."""
    cycle: tuple[Precedence, ...]
    """In order, each edge's `after` being the next one's `before`."""


class CycleFinder:
    """Looks for cycles of one graph; remembers its last longest paths, from which the next search starts."""

    def __init__(self, waits: PrecedenceGraph) -> None:
        self._edges = list(waits.edges)
        self._number = {node: place for place, node in enumerate(waits.nodes)}
        self._incoming: list[list[tuple[int, float, int, int]]] = [[] for _ in self._number]
        for place, edge in enumerate(waits.edges):
            self._incoming[self._number[edge.after]].append(
                (self._number[edge.before], edge.seconds, edge.periods, place)
            )
        self._source = [self._number[edge.before] for edge in waits.edges]
        self._own = len(self._edges)
        self._weighed: tuple[float, list[list[tuple[int, float, int]]]] = (inf, [])
        self._starts = [0.0] * len(self._number)
        self._longest = max((edge.seconds for edge in waits.edges), default=0.0)

    def slower_than(self, seconds: float, more: Sequence[Precedence] = ()) -> Critical | None:
        """Return a cycle that takes longer than `seconds` a period, None if there is none.

        Args:
            seconds: the bound.
            more: edges to add to the graph's own, for this search.
        """
        incoming = self._with(more, seconds)
        starts = list(self._starts)
        reasons = [-1] * len(starts)
        slack = _ROUNDING * (abs(seconds) + self._longest)
        for sweep in range(len(starts) + 2):
            changed = False
            for node, edges in enumerate(incoming):
                best = starts[node] + slack
                for source, weight, place in edges:
                    if starts[source] + weight > best:
                        best = starts[source] + weight
                        starts[node] = best
                        reasons[node] = place
                        changed = True
            if not changed:
                self._starts = starts
                return None
            if sweep % 2 and (found := self._cycle(reasons)):  # Looking costs less than a sweep.
                return found
        found = self._cycle(reasons)
        assert found is not None
        return found

    def _with(self, more: Sequence[Precedence], seconds: float) -> list[list[tuple[int, float, int]]]:
        """Return for each node what it awaits, a period being `seconds`."""
        if self._weighed[0] != seconds:
            weighed = [
                [(source, taken - seconds * periods, place) for source, taken, periods, place in edges]
                for edges in self._incoming
            ]
            self._weighed = seconds, weighed
        del self._edges[self._own :], self._source[self._own :]
        incoming = list(self._weighed[1])
        for place, edge in enumerate(more, start=self._own):
            self._edges.append(edge)
            self._source.append(self._number[edge.before])
            node = self._number[edge.after]
            incoming[node] = [*incoming[node], (self._source[place], edge.seconds - seconds * edge.periods, place)]
        return incoming

    def _cycle(self, reasons: Sequence[int]) -> Critical | None:
        """Follow reasons back; return the slowest cycle among them."""
        seen = [-1] * len(reasons)
        found: list[Critical] = []
        for start in range(len(reasons)):
            node = start
            while seen[node] == -1 and reasons[node] != -1:
                seen[node] = start
                node = self._source[reasons[node]]
            if reasons[node] != -1 and seen[node] == start:
                found.append(self._closed(reasons, node))
        return max(found, key=lambda critical: critical.seconds, default=None)

    def _closed(self, reasons: Sequence[int], node: int) -> Critical:
        cycle: list[Precedence] = []
        at = node
        while not cycle or at != node:
            cycle.append(self._edges[reasons[at]])
            at = self._source[reasons[at]]
        return _critical(cycle[::-1])


def _critical(cycle: Sequence[Precedence]) -> Critical:
    periods = sum(edge.periods for edge in cycle)
    taken = sum(edge.seconds for edge in cycle)
    return Critical(seconds=taken / periods if periods > 0 else inf, cycle=tuple(cycle))


def slowest_cycle(waits: PrecedenceGraph, at_least: float = 0.0) -> Critical:
    """Return the cycle that sets the period.

    Args:
        waits: the graph.
        at_least: a lower bound, of which the caller knows; the closer the faster.

    Returns:
        The slowest cycle; where none is slower than `at_least`, that and no cycle.
    """
    finder = CycleFinder(waits)
    critical = Critical(seconds=at_least, cycle=())
    while critical.seconds < inf:
        slower = finder.slower_than(critical.seconds)
        if slower is None or slower.seconds <= critical.seconds:  # Equal up to rounding.
            break
        critical = slower
    return critical
