"""The exact period of a precedence graph: the largest ratio of seconds to periods over all its cycles.

A full pipeline ends up periodic, and no faster than any of its cycles allows (Baccelli, Cohen, Olsder and Quadrat 1992,
*Synchronization and Linearity*, theorem 2.23). The largest ratio is found by Dinkelbach's method: take a lower bound, look
for a cycle that takes longer, take its ratio as the next bound. Longest paths are swept in the order of the nodes, in
which few paths run backwards, so that a few sweeps settle graphs of thousands of stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from attrs import frozen

from petra_graph.compiler.simulator.precedence import Precedence, PrecedenceGraph

_ROUNDING = 1e-12
"""Rounding error of sums of floats, relative to a period and the longest wait."""


@frozen(kw_only=True)
class CriticalCycle:
    """The slowest cycle."""

    seconds: float
    """Of one period; infinite where the cycle can never begin."""
    cycle: tuple[Precedence, ...]
    """In order, each edge's `after` being the next one's `before`."""


class CycleFinder:
    """Finds cycles of one graph that take longer than a bound."""

    def __init__(self, graph: PrecedenceGraph) -> None:
        self._edges = graph.edges
        number = {node: place for place, node in enumerate(graph.nodes)}
        self._source = [number[edge.before] for edge in graph.edges]
        self._incoming: list[list[int]] = [[] for _ in number]
        for place, edge in enumerate(graph.edges):
            self._incoming[number[edge.after]].append(place)
        self._longest = max((edge.seconds for edge in graph.edges), default=0.0)

    def slower_than(self, seconds: float) -> CriticalCycle | None:
        """Return a cycle that takes longer than `seconds` a period, None if there is none.

        Longest paths from all nodes grow for ever along such a cycle, and settle where there is none.
        """
        incoming = [
            [(self._source[p], self._edges[p].seconds - seconds * self._edges[p].periods, p) for p in places]
            for places in self._incoming
        ]
        starts = [0.0] * len(incoming)
        latest = [-1] * len(incoming)  # For each node, the edge that last moved its start.
        slack = _ROUNDING * (abs(seconds) + self._longest)
        for sweep in range(len(starts) + 2):
            changed = False
            for node, edges in enumerate(incoming):
                best = starts[node] + slack
                for source, weight, place in edges:
                    if starts[source] + weight > best:
                        best = starts[source] + weight
                        starts[node] = best
                        latest[node] = place
                        changed = True
            if not changed:
                return None
            if sweep % 2 and (found := self._cycle(latest)):  # A search costs less than a sweep.
                return found
        found = self._cycle(latest)
        assert found is not None
        return found

    def _cycle(self, latest: Sequence[int]) -> CriticalCycle | None:
        """Follow the latest edges back; return the slowest cycle among them."""
        seen = [-1] * len(latest)
        found: list[CriticalCycle] = []
        for start in range(len(latest)):
            node = start
            while seen[node] == -1 and latest[node] != -1:
                seen[node] = start
                node = self._source[latest[node]]
            if latest[node] != -1 and seen[node] == start:
                found.append(self._closed(latest, node))
        return max(found, key=lambda critical: critical.seconds, default=None)

    def _closed(self, latest: Sequence[int], node: int) -> CriticalCycle:
        """Return the cycle through `node`."""
        cycle: list[Precedence] = []
        at = node
        while not cycle or at != node:
            cycle.append(self._edges[latest[at]])
            at = self._source[latest[at]]
        cycle.reverse()
        periods = sum(edge.periods for edge in cycle)
        seconds = sum(edge.seconds for edge in cycle)
        return CriticalCycle(seconds=seconds / periods if periods > 0 else inf, cycle=tuple(cycle))


def slowest_cycle(graph: PrecedenceGraph, at_least: float) -> CriticalCycle:
    """Return the cycle that sets the period.

    Args:
        at_least: a lower bound of the period in seconds; the closer, the faster.

    Returns:
        The slowest cycle; where none is slower than `at_least`, that and no cycle.
    """
    finder = CycleFinder(graph)
    critical = CriticalCycle(seconds=at_least, cycle=())
    while critical.seconds < inf:
        slower = finder.slower_than(critical.seconds)
        if slower is None or slower.seconds <= critical.seconds:  # Equal up to rounding.
            break
        critical = slower
    return critical
