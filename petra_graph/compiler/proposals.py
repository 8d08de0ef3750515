"""What the table proposes: the best stages on devices in some order, by the seconds and bytes that add up node by node.

What a device holds with some nodes is estimated at first. Once the memory model has found the bytes of a cut, its devices' intervals have
these, and the next proposal knows them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property, partial
from itertools import combinations, islice, pairwise
from math import inf
from typing import Literal

import networkx as nx
import numpy as np
from attrs import define, field

from petra_graph.compiler.cuts import Cut, CutSpace, Hosts
from petra_graph.compiler.intervals import Array, Costs, Intervals, best_bounds, node_orders
from petra_graph.compiler.node_table import NodeTable

Objective = Literal["balanced", "memory"]
_HOPE = 0.9
"""The part of the table's sums that a device is taken to hold until the memory model has said what it does."""
_SHARES = 20
"""Ways to share the stages among devices, under memory limits."""


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

    @property
    def are_exact(self) -> bool:
        """Whether a device holds the same in every cut that gives it the same nodes: one stage of a chain, with a known depth."""
        alone = self.space.stages <= len(self.space.kinds) and self.space.fixed is None
        return alone and len(self.orders) == 1 and self.table.inputs.schedule != "auto"

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

    def best(
        self, hosts: Hosts, objective: Objective, parts: Sequence[float] = (), limits: Sequence[float | None] = ()
    ) -> Cut | None:
        """Return the best cut on devices in this order, None if the table has none.

        Args:
            objective: "balanced" makes the busiest device least busy, "memory" the fullest one least full.
            parts: what the bytes of every device are divided by, for "memory".
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
                largest = [within] if objective == "balanced" else [held, within]
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
