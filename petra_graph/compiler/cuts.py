"""Cuts: the stage of every unit, the device of every stage, what every node keeps; how these change, and with which a search begins.

    order     stem  a  b  c  head          units: nodes, or several that change their stage together
    stages     0    0  1  1   2            no edge leads to an earlier stage, no stage is empty
    hosts      0    0  1                   the device of stages 0, 1 and 2; each device has neighbours

A search begins with one order of units, and one of devices, cut into intervals by dynamic programming:

    rest[p][a]     devices p, p+1, ... hold the units from position a on
                   = the best over b > a of   costs[p][a, b]   and, the larger of both or their sum,   rest[p + 1][b]

Costs are sums over nodes, so they are estimates: the two models, which go through whole stages, have the last word (`placement_search`).
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, combinations, count, islice, pairwise
from math import inf
from typing import NamedTuple, get_args

import networkx as nx
import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from petra_graph.compiler.node_table import NodeTable
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.program.channels import NEIGHBOUR_CAPACITY
from petra_graph.spec.model import BufferedKeeps, Keeps

Hosts = tuple[int, ...]
Array = NDArray[np.float64]
_ROOMS = (1.0, 1.05, 1.15, 1.3, 1.6, 2.0)
"""What devices may hold, in parts of the least that the fullest must; the fastest intervals within each are a start."""
_TRIED = 4
"""Orders of devices that are cut, by their seconds, and as many by their memory if that is limited."""
_MOST_ORDERS, _MOST_STEPS = 720, 3e7
"""Orders of devices that are looked at, all of six unlike devices, and intervals for all of them."""
_EQUAL = 1 + 1e-9


class Cut(NamedTuple):
    """The stage of every unit, the device of every stage, and what every node keeps, where that is open."""

    stages: tuple[int, ...]
    hosts: Hosts
    keeps: tuple[Keeps, ...] = ()


@frozen(kw_only=True, eq=False, slots=False)
class Space:
    """What may be chosen."""

    inputs: PlannerInputs
    stages: int
    given: tuple[int, ...] | None = None
    """The stage of every node, where stages are given: each is a unit that stays where it is."""
    hosts: Hosts | None = None

    @cached_property
    def kinds(self) -> Sequence[Hashable]:
        return [self.inputs.kind_of(device) for device in self.inputs.devices]

    @cached_property
    def unit_of(self) -> NDArray[np.int64]:
        """The unit of every node; nodes that share a parameter have one."""
        if self.given is not None:
            return np.array(self.given)
        first = {name: names[0] for names in self.inputs.together for name in names}
        number: dict[str, int] = {}
        return np.array([number.setdefault(first.get(name, name), len(number)) for name in self.inputs.graph.order])

    @cached_property
    def units(self) -> Sequence[Sequence[int]]:
        return [np.flatnonzero(self.unit_of == unit).tolist() for unit in range(self.unit_of.max() + 1)]

    @cached_property
    def edges(self) -> nx.DiGraph:
        unit_of, found = dict(zip(self.inputs.graph.order, self.unit_of.tolist(), strict=True)), nx.DiGraph()
        found.add_nodes_from(range(len(self.units)))
        ends = ((unit_of[producer], unit_of[reader]) for producer, reader in self.inputs.graph.digraph.edges)
        found.add_edges_from(pair for pair in ends if pair[0] != pair[1])
        return found

    @cached_property
    def unit_orders(self) -> Sequence[Sequence[int]]:
        """Topological orders of units: as listed, breadth first, depth first; the two from the other end."""
        if self.given is not None:
            return [range(len(self.units))]
        sort, backwards, clock = nx.lexicographical_topological_sort, self.edges.reverse(copy=False), count()
        found = [
            sort(self.edges),
            sort(self.edges, key=lambda _: next(clock)),
            sort(self.edges, key=lambda _: -next(clock)),
            reversed(list(sort(backwards, key=lambda _: -next(clock)))),
            reversed(list(sort(backwards, key=lambda _: next(clock)))),
        ]
        return list(dict.fromkeys(map(tuple, found)))

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """The two ends of every edge between units."""
        return np.array(list(self.edges.edges), np.int64).reshape(-1, 2).T

    def neighbours(self, cut: Cut, fullest: int | None) -> Iterator[Cut]:
        """Yield the cuts that differ by one unit's stage, one stage's device, or what one node keeps; where a device holds too much, those that change it."""
        stages, hosts, keeps = cut
        for others in self._other_hosts(hosts) if self.hosts is None else ():
            changed = zip(hosts, others, strict=True)
            if fullest is None or any(one != other and fullest in (one, other) for one, other in changed):
                yield cut._replace(hosts=others)
        if self.given is None:
            # To a stage next to its own, unless an edge would then lead to an earlier stage, or its own would be empty.
            own, (producers, readers) = np.array(stages), self._ends
            may = (np.bincount(own) > 1)[own] & ((fullest is None) | (np.array(hosts)[own] == fullest))
            down, up = may & (own > 0), may & np.isin(np.arange(len(own)), producers)
            inside = own[producers] == own[readers]
            down[readers[inside]] = up[producers[inside]] = False
            for unit in np.flatnonzero(down | up).tolist():
                for step in [-1] * bool(down[unit]) + [1] * bool(up[unit]):
                    yield cut._replace(stages=(*stages[:unit], stages[unit] + step, *stages[unit + 1 :]))
        graph = self.inputs.graph
        for node, name in enumerate(graph.order if keeps and fullest is not None else ()):
            kind = graph.nodes[name].kind
            if kind != "head" and hosts[stages[self.unit_of[node]]] == fullest:
                for keep in get_args(Keeps if kind == "reversible" else BufferedKeeps):
                    yield cut._replace(keeps=(*keeps[:node], keep, *keeps[node + 1 :]))

    def _other_hosts(self, hosts: Hosts) -> Iterator[Hosts]:
        """Yield the devices with two of different kinds exchanged, one of which may be spare, or one stage on its neighbour's device."""
        stages_on = Counter(hosts)
        for one, other in combinations(range(len(self.kinds)), 2) if len({*self.kinds}) > 1 else ():
            if self.kinds[one] != self.kinds[other] and (one in stages_on or other in stages_on):
                yield tuple({one: other, other: one}.get(host, host) for host in hosts)
        for stage, host in enumerate(hosts):
            for other in {*hosts[max(0, stage - 1) : stage + 2]} - {host} if stages_on[host] > 1 else ():
                yield (*hosts[:stage], other, *hosts[stage + 1 :])

    def device_orders(self, used: int, chosen: Hosts = ()) -> Iterator[Hosts]:
        """Yield the orders of `used` devices, the listed one first; those that differ only by devices of one kind once."""
        if len(chosen) == used:
            yield chosen
            return
        seen = set[Hashable]()
        for device, kind in enumerate(self.kinds):
            if device not in chosen and kind not in seen:
                seen.add(kind)
                yield from self.device_orders(used, (*chosen, device))


# --- starts ---


def starts(space: Space, table: NodeTable, proportions: Sequence[float]) -> list[Cut]:
    """Return cuts for several orders of units and devices: the fastest by their sums, and if memory is limited the fastest in several rooms.

    Args:
        proportions: of the devices' memory limits, if there are any; not the limits: what small ones allow, larger ones do.
    """
    if space.hosts is not None:
        return [Cut(tuple(range(space.stages)), space.hosts)]
    orders = [_Intervals(space=space, table=table, order=order) for order in space.unit_orders]
    ranked = orders[0].best_devices(())[:_TRIED]
    if proportions:
        ranked += orders[0].best_devices(proportions)[:_TRIED]
    found = (cut for hosts in dict.fromkeys(ranked) for order in orders for cut in order.cuts(hosts, proportions))
    return list(dict.fromkeys(found))


@define(kw_only=True, eq=False, slots=False)
class _Intervals:
    """One order of units, cut into intervals; the row of an array is where an interval begins, its column where it ends."""

    space: Space
    table: NodeTable
    order: Sequence[int]
    _work: dict[tuple[int, bool], Array] = field(init=False, factory=dict)

    def best_devices(self, proportions: Sequence[float]) -> list[Hosts]:
        """Return orders of devices, the best first: by the share of the fullest in the best cut; without limits by the busiest, or by the way to the head."""
        space = self.space
        used = min(space.stages, len(space.kinds))
        most = max(8, min(_MOST_ORDERS, int(_MOST_STEPS / (used * (len(self.order) + 1) ** 2))))
        orders = list(islice(space.device_orders(used), most))
        if len(orders) == most:  # All of these begin alike; the search exchanges devices.
            fast = np.argsort(self.table.seconds[0].sum(axis=1), kind="stable")[:used].tolist()
            orders += [tuple(fast), tuple(reversed(fast))]

        def value(hosts: Hosts) -> float:
            if proportions:
                return float(_rests(self._shares(hosts, proportions), np.maximum)[0][0])
            seconds, total = self._seconds(hosts)
            way = float(_rests(total, np.add)[0][0]) / self.table.in_flight(space.stages - 1)[0]
            return max(float(_rests(seconds, np.maximum)[0][0]), way)

        return sorted(orders, key=value) if len(orders) > 1 else orders

    def cuts(self, hosts: Hosts, proportions: Sequence[float]) -> Iterator[Cut]:
        seconds, total = self._seconds(hosts)
        rooms: list[Sequence[Array]] = [seconds, [np.where(np.isfinite(one), 0.0, inf) for one in seconds]]
        if proportions:
            shares = self._shares(hosts, proportions)
            least = float(_rests(shares, np.maximum)[0][0])
            rooms += [
                [np.where(share <= room * least * _EQUAL, own, inf) for share, own in zip(shares, seconds, strict=True)]
                for room in _ROOMS
            ]
        for costs in rooms:
            longest = max(float(one.max(where=np.isfinite(one), initial=0.0)) for one in costs) or 1.0
            even = [one + own**2 / longest for one, own in zip(total, costs, strict=True)]
            if bounds := _bounds(costs, even):
                yield self._staged(bounds, hosts)

    def _sums(self, values: Sequence[float]) -> Array:
        """Return the sums of nodes' values over all intervals; infinite for empty ones."""
        of_units = (sum(values[node] for node in self.space.units[unit]) for unit in self.order)
        sums = np.array([0.0, *accumulate(of_units)])
        return np.where(np.arange(len(sums))[:, None] < np.arange(len(sums)), sums[None, :] - sums[:, None], inf)

    @cached_property
    def _crossing(self) -> Array:
        """The bytes that cross each boundary forwards, and backwards."""
        place = {unit: at for at, unit in enumerate(self.order)}
        found = np.zeros((2, len(self.order) + 1))
        for ends, sizes in zip(self.table.edges, self.table.edge_bytes, strict=True):
            first, last = sorted(place[self.space.unit_of[end]] for end in ends)
            found[:, first + 1 : last + 1] += sizes[:, None]
        return found

    def _seconds(self, hosts: Hosts) -> tuple[list[Array], list[Array]]:
        """Return the seconds of each device's work, or of its messages if these take longer; and of its work and its messages."""
        devices, largest, total = self.space.inputs.devices, list[Array](), list[Array]()
        for at, host in enumerate(hosts):
            last = at == len(hosts) - 1 == self.space.stages - 1
            if (host, last) not in self._work:
                own = self._sums(self.table.seconds[int(last), host].tolist())
                self._work[host, last] = own + self.table.stage_seconds[host]
            work, arrives = self._work[host, last], np.zeros((2, len(self.order) + 1))
            if at:
                link = devices[hosts[at - 1]].link_to(devices[host])
                arrives = self._crossing / link.bytes_per_second + link.latency_seconds
            largest.append(np.maximum(work, arrives.max(axis=0)[:, None]))
            total.append(work + arrives.sum(axis=0)[:, None])
        return largest, total

    def _shares(self, hosts: Hosts, proportions: Sequence[float]) -> list[Array]:
        """Return about what each device holds, in parts of its limit."""
        resident, stored, version, largest = self.table.held
        stages, units, kept, found = self.space.stages, self.space.units, np.zeros(len(resident)), []
        working = np.array([0.0, *(largest[units[unit]].max() for unit in self.order)])
        most = np.maximum.accumulate(np.triu(np.tile(working, (len(working), 1)), 1), axis=1)
        most += NEIGHBOUR_CAPACITY * (self._crossing[0][:, None] + self._crossing[1][None, :])
        for at, host in enumerate(hosts):
            for unit in self.order:
                # If stages are not given, a node's is about as far from the head's as its device from the last one.
                about = stages - 1 - (at * stages // len(hosts) if self.space.given is None else unit)
                depth, versions = self.table.in_flight(about)
                own = units[unit]
                kept[own] = resident[own] + versions * version[own] + depth * stored[own]
            held, limit = self._sums(kept.tolist()) + most, proportions[host]
            found.append(np.where(np.isfinite(held), 0.0, inf) if limit == inf else held / limit)
        return found

    def _staged(self, bounds: Sequence[int], hosts: Hosts) -> Cut:
        """Cut the devices' intervals into stages, so that stages take about as long as one another."""
        spans = list(pairwise(bounds))
        if self.space.given is not None:
            owners = [host for host, (a, b) in zip(hosts, spans, strict=True) for _ in range(a, b)]
            return Cut(tuple(range(self.space.stages)), tuple(owners))
        work = [self._work[host, (host, False) not in self._work] for host in hosts]
        numbers, owners, stages = [1] * len(hosts), list[int](), [0] * len(self.order)
        for _ in range(self.space.stages - len(hosts)):
            more = [at for at, (a, b) in enumerate(spans) if numbers[at] < b - a]
            numbers[max(more, key=lambda at: float(work[at][spans[at]]) / numbers[at])] += 1
        for own, host, (a, b), number in zip(work, hosts, spans, numbers, strict=True):
            inside = own[a : b + 1, a : b + 1]
            ends = _bounds([inside] * number, [inside**2] * number) or ()  # An interval has enough units.
            for begin, end in pairwise(ends):
                for unit in self.order[a + begin : a + end]:
                    stages[unit] = len(owners)
                owners.append(host)
        return Cut(tuple(stages), tuple(owners))


def _rests(costs: Sequence[Array], combined: Callable[[Array, Array], Array]) -> list[Array]:
    """Return the least that the intervals from each place on can cost, whose costs are combined."""
    rest = [np.where(np.arange(len(costs[0])) == len(costs[0]) - 1, 0.0, inf)]
    for own in reversed(costs):
        rest.append(combined(own, rest[-1]).min(axis=1))
    return rest[::-1]


def _bounds(costs: Sequence[Array], summed: Sequence[Array]) -> tuple[int, ...] | None:
    """Return the bounds of the intervals with the least largest cost, and among those the least sum of other costs; None if no cut is allowed."""
    if (most := float(_rests(costs, np.maximum)[0][0])) == inf:
        return None
    allowed = [np.where(own <= most * _EQUAL, one, inf) for own, one in zip(costs, summed, strict=True)]
    bounds = [0]
    for own, rest in zip(allowed, _rests(allowed, np.add)[1:], strict=True):
        bounds.append(int((own[bounds[-1]] + rest).argmin()))
    return tuple(bounds)
