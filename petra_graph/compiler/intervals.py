"""The best cut of one order of nodes into intervals, one a device, by dynamic programming.

    order   n0 n1 n2 | n3 n4 | n5 ...        an interval is [a, b): here [0, 3), [3, 5)

    rest[p][a]     devices p, p+1, ... hold the nodes from position a on
                   = the best over b > a of   costs[p][a, b]   combined with   rest[p + 1][b]

"Combined with" is the larger of both, or their sum: it is monotone in the rest, so the best rest may replace any other. Several criteria
are made least one after another: each keeps to the intervals that the one before allows.

Any cut into an acyclic graph of stages is a cut of some topological order into intervals; on a chain there is one order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import networkx as nx
import numpy as np
from attrs import define
from numpy.typing import NDArray

from petra_graph.compiler.node_table import NodeTable
from petra_graph.graph.node_graph import distances, stage_graph
from petra_graph.program.channels import NEIGHBOUR_CAPACITY

Array = NDArray[np.float64]
Costs = Callable[[int], Array]
"""Of all intervals on the device at a place in the pipeline, infinite where it may not hold them."""
_EQUAL = 1 + 1e-9
"""Seconds are sums of rounded numbers: ticks this close count as equal."""
_SHORT = 100
"""Nodes of a network whose stages on shared devices are tried at all places."""


def best_bounds(places: int, largest: Sequence[Costs], summed: Costs) -> tuple[list[float], tuple[int, ...]] | None:
    """Return the largest cost of an interval, of each criterion, and where the intervals begin and end; None if nothing is allowed.

    Args:
        places: number of intervals.
        largest: of each criterion, the largest cost is made least.
        summed: costs whose sum is then made least.
    """
    values: list[float] = []

    def allowed(costs: Costs, place: int) -> Array:
        found = costs(place)
        for earlier, value in zip(largest, values, strict=False):
            found = np.where(earlier(place) <= value * _EQUAL, found, np.inf)
        return found

    for costs in largest:
        rest = _end(costs(0))
        for place in reversed(range(places)):
            rest = np.maximum(allowed(costs, place), rest).min(axis=1)
        if rest[0] == np.inf:
            return None
        values.append(float(rest[0]))
    rest = _end(summed(0))
    following: list[NDArray[np.int64]] = []
    for place in reversed(range(places)):
        costs_and_rest = allowed(summed, place) + rest
        following.append(costs_and_rest.argmin(axis=1))
        rest = costs_and_rest.min(axis=1)
    bounds = [0]
    for ends in reversed(following):
        bounds.append(int(ends[bounds[-1]]))
    return values, tuple(bounds)


def _end(costs: Array) -> Array:
    return np.where(np.arange(len(costs)) == len(costs) - 1, 0.0, np.inf)


@define(kw_only=True, eq=False, slots=False)
class Intervals:
    """The costs of all intervals of one order."""

    table: NodeTable
    order: Sequence[int]
    """Positions of nodes in the graph's order."""
    ends: Sequence[bool]
    """Whether a device may end behind each node."""
    stage_of: Sequence[int] | None = None
    """Of each node of the order, where stages are given."""

    @cached_property
    def possible(self) -> NDArray[np.bool_]:
        cuts = np.array([True, *self.ends])
        first, last = np.indices((len(cuts), len(cuts)))
        possible: NDArray[np.bool_] = (first < last) & cuts[:, None] & cuts[None, :]
        return possible

    def work(self, device: int, *, last: bool) -> Array:
        """Return the seconds of all intervals on a device, which hosts the last stage alone if it is the `last`."""
        seconds = self.table.seconds[device]
        own = list(seconds.last if last else seconds.inner)
        if self.stage_of is None:
            return self._over(own) + seconds.stage
        for place, node in enumerate(self.order):
            own[node] = (seconds.last if self.stage_of[place] == self.stage_of[-1] else seconds.inner)[node]
            own[node] += seconds.stage * (place == 0 or self.stage_of[place] != self.stage_of[place - 1])
        return self._over(own)

    @cached_property
    def messages(self) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """The bytes, forwards and backwards, that enter each interval, and those that leave it."""
        position = {node: place for place, node in enumerate(self.order)}
        entering, leaving = list[Array](), list[Array]()
        for direction in ("forward", "backward"):
            crossing = np.zeros(len(self.order) + 1)
            sizes = np.zeros((len(crossing), len(crossing)))
            for message in self.table.messages:
                a, b = position[message.producer], position[message.consumer]
                sizes[a + 1, b] += getattr(message, direction)
                crossing[a + 1 : b + 1] += getattr(message, direction)
            # At [a, b]: of the edges from before a to b or behind it, which do not stop in between.
            spanning = sizes.cumsum(axis=0)[:, ::-1].cumsum(axis=1)[:, ::-1]
            entering.append(crossing[:, None] - spanning)
            leaving.append(crossing[None, :] - spanning)
        return (entering[0], entering[1]), (leaving[0], leaving[1])

    def bytes(self, distances: Sequence[int]) -> Array:
        """Return what all intervals hold, about, on a device whose stages have these distances to the head's, if it is cut to hold least.

        Each stage may end anywhere; in long networks, all nodes count as those of the last one.
        """
        own = np.append(0.0, [self.table.nodes[node].working for node in self.order])
        working = np.maximum.accumulate(np.triu(np.tile(own, (len(own), 1)), k=1), axis=1)
        (entering, _), (_, leaving) = self.messages
        held = self.kept(distances[-1])
        if self.stage_of is None and len(own) <= _SHORT:
            for distance in reversed(distances[:-1]):
                held = (self.kept(distance)[:, :, None] + held[None, :, :]).min(axis=1)
        return held + working + NEIGHBOUR_CAPACITY * (entering + leaving)

    def kept(self, distance: int) -> Array:
        """Return what a stage at a distance to the head's keeps of all intervals, or what given stages keep at their own distances."""
        nodes = [self.table.nodes[node] for node in self.order]
        joins = [place > 0 and node.joins == self.order[place - 1] for place, node in enumerate(nodes)]
        flying = [self.table.in_flight(distance)] * len(nodes)
        if self.stage_of is not None:
            flying = [self.table.in_flight(self._distances[stage]) for stage in self.stage_of]
            joins = [join and self.stage_of[place] == self.stage_of[place - 1] for place, join in enumerate(joins)]
        kept, opening = list[int](), list[int]()
        for node, join, (depth, versions) in zip(nodes, joins, flying, strict=True):
            kept.append(node.resident + versions * node.version + (0 if join else depth * node.buffer))
            opening.append(depth * node.buffer if join else 0)
        sums = np.append(0.0, np.cumsum(kept))
        held = sums[None, :] - sums[:, None] + np.append(opening, 0.0)[:, None]
        return np.where(self.possible, held, np.inf)

    @cached_property
    def _distances(self) -> dict[int, int]:
        assert self.stage_of is not None
        names = self.table.inputs.graph.order
        members = [
            [names[node] for node, own in zip(self.order, self.stage_of, strict=True) if own == stage]
            for stage in range(self.stage_of[-1] + 1)
        ]
        found = distances(stage_graph(self.table.inputs.graph.digraph, members))
        return {stage - 1: distance for stage, distance in found.items()}

    def _over(self, values: Sequence[float]) -> Array:
        """Return the sums of nodes' values over all intervals, by the nodes' positions in the graph."""
        sums = np.append(0.0, np.cumsum([values[node] for node in self.order]))
        return np.where(self.possible, sums[None, :] - sums[:, None], np.inf)


def node_orders(graph: nx.DiGraph, units: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """Yield topological orders in which each unit's nodes are neighbours: the listed one, breadth first, depth first from both ends.

    Args:
        graph: of positions in the listed order.
        units: nodes that are in one stage.
    """
    unit_of = {node: place for place, unit in enumerate(units) for node in unit}
    merged = nx.DiGraph()
    merged.add_nodes_from(range(len(units)))
    merged.add_edges_from((unit_of[a], unit_of[b]) for a, b in graph.edges if unit_of[a] != unit_of[b])
    clock = iter(range(2 * len(units) * len(units) + 2))
    backwards = merged.reverse(copy=False)
    found = [
        list(nx.lexicographical_topological_sort(merged, key=lambda unit: units[unit][0])),
        list(nx.lexicographical_topological_sort(merged, key=lambda _: next(clock))),
        list(nx.lexicographical_topological_sort(merged, key=lambda _: -next(clock))),
        list(nx.lexicographical_topological_sort(backwards, key=lambda _: -next(clock)))[::-1],
        list(nx.lexicographical_topological_sort(backwards, key=lambda _: next(clock)))[::-1],
    ]
    orders = [tuple(node for unit in one for node in units[unit]) for one in found]
    yield from dict.fromkeys(orders)
