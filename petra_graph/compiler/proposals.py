"""What the table proposes: the best stages on devices in some order, by the seconds and bytes that add up node by node.

One order of nodes is cut into intervals, one a device, by dynamic programming:

    order   n0 n1 n2 | n3 n4 | n5 ...        an interval is [a, b): here [0, 3), [3, 5)

    rest[p][a]     devices p, p+1, ... hold the nodes from position a on
                   = the best over b > a of   costs[p][a, b]   combined with   rest[p + 1][b]

"Combined with" is the larger of both, or their sum: it is monotone in the rest, so the best rest may replace any other. Several criteria
are made least one after another: each keeps to the intervals that the one before allows.

Any cut into an acyclic graph of stages is a cut of some topological order into intervals; on a chain there is one order.

What a device holds with some nodes is estimated at first. Once the memory model has found the bytes of a cut, its devices' intervals have
these, and the next proposal knows them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import combinations, islice, pairwise
from math import inf

import networkx as nx
import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from petra_graph.compiler.cuts import Cut, CutSpace, Hosts
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
_HOPE = 0.9
"""The part of the table's sums that a device is taken to hold until the memory model has said what it does."""
_SHARES = 20
"""Ways to share the stages among devices, under memory limits."""


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


@define(kw_only=True, slots=False)
class Proposals:
    """The table of a network, to be cut into some stages, or with given ones."""

    table: NodeTable
    space: CutSpace
    _known: dict[tuple[int, int, int], dict[tuple[int, int], int]] = field(init=False, factory=dict)
    """The bytes that the memory model has found, by the place of the order, a device's first stage and their number, and by the interval."""
    _arrays: dict[object, Array] = field(init=False, factory=dict)

    @cached_property
    def orders(self) -> Sequence[Intervals]:
        """The orders of nodes that are cut."""
        space, fixed = self.space, self.space.fixed
        if fixed is not None:
            order = sorted(range(space.count), key=lambda node: (fixed[node], node))
            stage_of = [fixed[node] for node in order]
            ends = [a != b for a, b in pairwise([*stage_of, space.stages])]
            return [Intervals(table=self.table, order=order, ends=ends, stage_of=stage_of)]
        graph = nx.DiGraph(space.edges)
        graph.add_nodes_from(range(space.count))
        unit_of = {node: place for place, unit in enumerate(space.units) for node in unit}
        return [
            Intervals(
                table=self.table, order=order, ends=[*(unit_of[a] != unit_of[b] for a, b in pairwise(order)), True]
            )
            for order in node_orders(graph, space.units)
        ]

    def busiest(self, hosts: Hosts) -> float:
        """Return the seconds of the busiest device or link in the best cut of the first order, on these devices."""
        costs = self._seconds(self.orders[0], 0, hosts)
        found = best_bounds(len(hosts), [costs], costs)
        return inf if found is None else found[0][0]

    def fullest(self, hosts: Hosts, parts: Sequence[float]) -> float:
        """Return the bytes of the fullest device in the best cut of the first order, on these devices; `parts` as in `best`."""
        held = partial(self._held, 0, hosts, self._shares(len(hosts))[0], parts)
        found = best_bounds(len(hosts), [held], held)
        return inf if found is None else found[0][0]

    def best(self, hosts: Hosts, *, parts: Sequence[float] = (), limits: Sequence[float | None] = ()) -> Cut | None:
        """Return the cut on devices in this order whose busiest device is least busy, None if the table has none.

        Args:
            parts: what the bytes of every device are divided by; then the fullest device is least full, and least busy only after that.
            limits: of the bytes of every device.
        """
        found: list[tuple[list[float], Cut]] = []
        ways: Sequence[Sequence[int]] = self._shares(len(hosts)) if parts or limits else [()]
        for place, intervals in enumerate(self.orders):
            for shares in ways:
                seconds = self._seconds(intervals, place, hosts)
                held: Costs = partial(self._held, place, hosts, shares, parts)
                within: Costs = (
                    partial(self._within, seconds, held, [limits[host] for host in hosts]) if limits else seconds
                )
                largest = [held, within] if parts else [within]
                made = best_bounds(len(hosts), largest, self._messages(intervals, place, hosts))
                if made is not None:
                    found.append((made[0], self._staged(place, made[1], hosts, shares)))
        return min(found, key=lambda one: one[0])[1] if found else None

    def learn(self, cut: Cut, held: Sequence[int]) -> None:
        """Take what the memory model has found of the devices of a cut."""
        hosts = tuple(dict.fromkeys(cut.hosts))
        place_of = {host: at for at, host in enumerate(hosts)}
        for place, intervals in enumerate(self.orders):
            at = [place_of[cut.hosts[cut.stages[node]]] for node in intervals.order]
            if at == sorted(at):
                ends = [bisect_left(at, device) for device in range(len(hosts) + 1)]
                for host, (a, b) in zip(hosts, pairwise(ends), strict=True):
                    own = cut.hosts.index(host), cut.hosts.count(host)
                    self._known.setdefault((place, *own), {})[a, b] = held[host]

    def _shares(self, devices: int) -> Sequence[Sequence[int]]:
        """Return numbers of stages for each device, the most even ones first; given stages have their own."""
        if self.space.fixed is not None or devices == self.space.stages:
            return [(1,) * devices]
        spare, even = self.space.stages - devices, self.space.stages / devices
        changes = islice(combinations(range(spare + devices - 1), devices - 1), _SHARES**2)
        every = [tuple(b - a for a, b in pairwise([-1, *one, spare + devices - 1])) for one in changes]
        return sorted(every, key=lambda shares: sum((share - even) ** 2 for share in shares))[:_SHARES]

    def _held(self, place: int, hosts: Hosts, shares: Sequence[int], parts: Sequence[float], at: int) -> Array:
        """Return what the device at a place holds with all intervals, as far as it is known, as a part of its limit."""
        first, share = sum(shares[:at]), shares[at]
        key = ("bytes", place, first, share)
        if key not in self._arrays:
            distances = [self.space.stages - 1 - stage for stage in range(first, first + share)]
            self._arrays[key] = _HOPE * self.orders[place].bytes(distances)
        found = self._arrays[key]
        if known := self._known.get((place, first, share)):
            found = found.copy()
            for interval, size in known.items():
                found[interval] = size
        part = parts[hosts[at]] if parts else 1.0
        return found / part if part < inf else np.where(np.isfinite(found), 0.0, inf)

    def _within(self, seconds: Costs, held: Costs, limits: Sequence[float | None], at: int) -> Array:
        limit = limits[at]
        return seconds(at) if limit is None else np.where(held(at) <= limit, seconds(at), inf)

    def _seconds(self, intervals: Intervals, place: int, hosts: Hosts) -> Costs:
        """Return the seconds of all intervals on each of some devices, its work or its messages if these take longer."""
        alone = len(hosts) == self.space.stages
        devices = self.table.inputs.devices

        def costs(at: int) -> Array:
            device, last = hosts[at], alone and at == len(hosts) - 1
            before = devices[hosts[at - 1]].link_to(devices[device]).bytes_per_second if at else inf
            after = devices[device].link_to(devices[hosts[at + 1]]).bytes_per_second if at + 1 < len(hosts) else inf
            key = (place, id(self.table.seconds[device]), last, before, after)
            if key not in self._arrays:
                entering, leaving = intervals.messages
                ways = [*(one / before for one in entering), *(one / after for one in leaving)]
                self._arrays[key] = np.maximum.reduce([intervals.work(device, last=last), *ways])
            return self._arrays[key]

        return costs

    def _messages(self, intervals: Intervals, place: int, hosts: Hosts) -> Costs:
        """Return the bytes that leave all intervals on each of some devices, more of them over slow links; then how uneven work is."""
        devices = [self.table.inputs.devices[host] for host in hosts]
        rates = [a.link_to(b).bytes_per_second for a, b in pairwise(devices)]
        finite = [rate for rate in rates if rate < inf]
        seconds = self._seconds(intervals, place, hosts)

        def costs(at: int) -> Array:
            own = seconds(at)
            weight = max(finite) / rates[at] if at < len(rates) and rates[at] < inf else 1.0
            key = ("messages", place, id(own), weight, len(hosts))
            if key not in self._arrays:
                (ahead, back) = intervals.messages[1]
                longest = float(own.max(where=np.isfinite(own), initial=0.0)) or 1.0
                even = (np.where(np.isfinite(own), own, 0.0) / longest) ** 2 / (2 * len(hosts))
                self._arrays[key] = np.where(np.isfinite(own), weight * (ahead + back) + even, inf)
            return self._arrays[key]

        return costs

    def _staged(self, place: int, bounds: Sequence[int], hosts: Hosts, shares: Sequence[int]) -> Cut:
        """Cut the devices' intervals into stages: so that the slowest stage is fastest, or where `shares` are given, to hold least."""
        intervals, count = self.orders[place], self.space.stages
        if self.space.fixed is not None:
            assert intervals.stage_of is not None
            device = [at for at, (a, b) in enumerate(pairwise(bounds)) for _ in {*intervals.stage_of[a:b]}]
            return Cut(tuple(self.space.fixed), tuple(hosts[at] for at in device))
        work = [intervals.work(host, last=False) for host in hosts]
        spans = list(pairwise(bounds))
        own_shares = shares or _even(
            [sum(intervals.ends[a:b]) for a, b in spans],
            [float(own[span]) for own, span in zip(work, spans, strict=True)],
            count,
        )
        stages, owners, first = [0] * self.space.count, list[int](), 0
        for own, host, (a, b), share in zip(work, hosts, spans, own_shares, strict=True):
            inside = slice(a, b + 1), slice(a, b + 1)

            def seconds(_: int, costs: Array = own[inside]) -> Array:
                return costs

            def kept(at: int, first: int = first, inside: tuple[slice, slice] = inside) -> Array:
                return intervals.kept(count - 1 - first - at)[inside]

            made = best_bounds(share, [] if shares else [seconds], kept)
            assert made is not None, "the interval has enough nodes"
            for stage, (begin, end) in enumerate(pairwise(made[1]), start=first):
                for node in intervals.order[a + begin : a + end]:
                    stages[node] = stage
            owners += [host] * share
            first += share
        return Cut(tuple(stages), tuple(owners))


def _even(most: Sequence[int], seconds: Sequence[float], stages: int) -> list[int]:
    """Return each device's number of stages, so that stages take about as long as one another."""
    found = [1] * len(most)
    for _ in range(stages - len(most)):
        divisible = [device for device, share in enumerate(found) if share < most[device]]
        found[max(divisible, key=lambda device: seconds[device] / found[device])] += 1
    return found
