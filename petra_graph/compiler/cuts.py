"""Cuts: the stage of every node, the device of every stage, what every node keeps; how these change, and with which a search begins.

    order     stem  a  b  c  head          the graph's topological order
    stages     0    0  1  1   2            no edge leads to an earlier stage, no stage is empty
    hosts      0    0  1                   the device of stages 0, 1 and 2; each device has neighbours

Any cut into an acyclic graph of stages can be written so, its stages numbered in some topological order.

A search begins with one order of nodes, and one of devices, cut into intervals by dynamic programming:

    order   n0 n1 n2 | n3 n4 | n5 ...        an interval is [a, b): here [0, 3), [3, 5)

    rest[p][a]     devices p, p+1, ... hold the nodes from position a on
                   = the best over b > a of   costs[p][a, b]   combined with   rest[p + 1][b]

"Combined with" is the larger of both, or their sum: it is monotone in the rest, so the best rest may replace any other. On a chain there is one
order. Costs are sums over nodes, so they are estimates: the two models, which go through whole stages, have the last word (`placement_search`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
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
from petra_graph.graph.node_graph import distances, stage_graph
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
"""Seconds are sums of rounded numbers."""


class Cut(NamedTuple):
    """Stages on devices, with what nodes keep: nodes, stages and devices are numbers, in the order of graph, pipeline and specification."""

    stages: tuple[int, ...]
    """Of every node."""
    hosts: Hosts
    """Of every stage."""
    keeps: tuple[Keeps, ...] = ()
    """Of every node, where that is open."""


@frozen(kw_only=True, eq=False, slots=False)
class Space:
    """What may be chosen."""

    inputs: PlannerInputs
    stages: int
    """Their number."""
    given: tuple[int, ...] | None = None
    """The stage of every node, where stages are given."""
    hosts: Hosts | None = None
    """The device of every stage, where these are given as well."""

    @cached_property
    def kinds(self) -> Sequence[Hashable]:
        """Of every device."""
        return [self.inputs.kind_of(device) for device in self.inputs.devices]

    @cached_property
    def listed(self) -> bool:
        """Whether devices keep their listed order, because they differ by their machine alone."""
        return self.inputs.alike

    @cached_property
    def units(self) -> Sequence[Sequence[int]]:
        """The nodes that change their stage together: those that share a parameter, or that are given as a stage, and the others alone."""
        order = self.inputs.graph.order
        if self.given is not None:
            return [[node for node, own in enumerate(self.given) if own == stage] for stage in range(self.stages)]
        together = [[order.index(name) for name in names] for names in self.inputs.together]
        bound = {node for nodes in together for node in nodes}
        return [*together, *([node] for node in range(len(order)) if node not in bound)]

    @cached_property
    def around(self) -> Sequence[tuple[Sequence[int], Sequence[int]]]:
        """Of every unit, the other nodes that it reads, and those that read it."""
        graph, found = self.inputs.graph, []
        position = {name: place for place, name in enumerate(graph.order)}
        for unit in self.units:
            read = (position[one] for node in unit for one in graph.digraph.predecessors(graph.order[node]))
            readers = (position[one] for node in unit for one in graph.digraph.successors(graph.order[node]))
            found.append(([one for one in read if one not in unit], [one for one in readers if one not in unit]))
        return found

    @cached_property
    def node_orders(self) -> Sequence[Sequence[Sequence[int]]]:
        """The units in topological orders: as listed, breadth first, depth first from both ends."""
        if self.given is not None:
            return [self.units]
        graph, merged = self.inputs.graph, nx.DiGraph()
        unit_of = {graph.order[node]: place for place, unit in enumerate(self.units) for node in unit}
        merged.add_nodes_from(range(len(self.units)))
        ends = ((unit_of[producer], unit_of[reader]) for producer, reader in graph.digraph.edges)
        merged.add_edges_from(pair for pair in ends if pair[0] != pair[1])
        sort, backwards, clock = nx.lexicographical_topological_sort, merged.reverse(copy=False), count()
        found = [
            list(sort(merged, key=lambda unit: self.units[unit][0])),
            list(sort(merged, key=lambda _: next(clock))),
            list(sort(merged, key=lambda _: -next(clock))),
            list(sort(backwards, key=lambda _: -next(clock)))[::-1],
            list(sort(backwards, key=lambda _: next(clock)))[::-1],
        ]
        return [[self.units[unit] for unit in order] for order in dict.fromkeys(map(tuple, found))]

    def neighbours(self, cut: Cut, fullest: int | None) -> Iterator[Cut]:
        """Yield the cuts that differ by one unit's stage, one stage's device, or what one node keeps.

        Args:
            fullest: a device that holds too much; what changes nothing there is left out. None: the cut fits, and nodes keep what they do.
        """
        stages, hosts, keeps = cut
        for others in self._other_hosts(hosts) if self.hosts is None else ():
            changed = zip(hosts, others, strict=True)
            if fullest is None or any(one != other and fullest in (one, other) for one, other in changed):
                yield cut._replace(hosts=others)
        for unit, (read, readers) in zip(self.units, self.around, strict=True) if self.given is None else ():
            stage = stages[unit[0]]
            if fullest not in (None, hosts[stage]) or stages.count(stage) == len(unit):
                continue
            # To a stage next to its own, unless an edge would then lead to an earlier stage.
            before, behind = (
                max((stages[one] for one in read), default=0),
                min((stages[one] for one in readers), default=0),
            )
            for other in [stage - 1] * (before < stage) + [stage + 1] * (behind > stage):
                moved = list(stages)
                for node in unit:
                    moved[node] = other
                yield Cut(tuple(moved), hosts, keeps)
        graph = self.inputs.graph
        for node, name in enumerate(graph.order if keeps and fullest is not None else ()):
            kind = graph.nodes[name].kind
            if kind != "head" and hosts[stages[node]] == fullest:
                for keep in get_args(Keeps if kind == "reversible" else BufferedKeeps):
                    yield cut._replace(keeps=(*keeps[:node], keep, *keeps[node + 1 :]))

    def _other_hosts(self, hosts: Hosts) -> Iterator[Hosts]:
        """Yield the devices with two exchanged, one of which may be spare, or one stage on its neighbour's device."""
        listed, kinds = self.listed, self.kinds
        if not listed:
            yield from self.exchanged(hosts)
        for stage, host in enumerate(hosts):
            before = hosts[stage - 1] if stage else -1
            after = hosts[stage + 1] if stage + 1 < len(hosts) else len(kinds)
            others = list[int]()
            if hosts.count(host) > 1:
                others = [one for one in (before, after) if 0 <= one < len(kinds) and one != host]
            elif listed and len(hosts) < len(kinds):  # Which devices are spare decides where a machine ends.
                others = [one for one in range(before + 1, after) if kinds[one] != kinds[host]]
            yield from ((*hosts[:stage], other, *hosts[stage + 1 :]) for other in others)

    def exchanged(self, hosts: Hosts) -> Iterator[Hosts]:
        """Yield the devices with two of different kinds exchanged, one of which may be spare; where they are listed, in their order."""
        for one, other in combinations(range(len(self.kinds)), 2):
            if self.kinds[one] != self.kinds[other] and (one in hosts or other in hosts):
                found = tuple({one: other, other: one}.get(host, host) for host in hosts)
                if not self.listed or list(found) == sorted(found):
                    yield found

    def device_orders(self, used: int, chosen: Hosts = ()) -> Iterator[Hosts]:
        """Yield the orders of `used` devices, the listed one first; those that differ only by devices of one kind once."""
        missing, listed, seen = used - len(chosen), self.listed, set[Hashable]()
        if not missing:
            yield chosen
            return
        for device in range(chosen[-1] + 1 if listed and chosen else 0, len(self.kinds) - (missing - 1) * listed):
            if device not in chosen and self.kinds[device] not in seen:
                seen.add(self.kinds[device])
                yield from self.device_orders(used, (*chosen, device))


# --- starts ---


def starts(space: Space, table: NodeTable, proportions: Sequence[float]) -> list[Cut]:
    """Return cuts for several orders of nodes and devices: the fastest by their sums, and if memory is limited the fastest in several rooms.

    Args:
        proportions: of the devices' memory limits, if there are any; not the limits: what small ones allow, larger ones do.
    """
    if space.hosts is not None:
        assert space.given is not None, "devices of unknown stages"
        return [Cut(space.given, space.hosts)]
    orders = [_Intervals(space=space, table=table, order=order) for order in space.node_orders]
    ranked = _best_devices(orders[0], ())[:_TRIED]
    if proportions:
        ranked += _best_devices(orders[0], proportions)[:_TRIED]
    found = (cut for hosts in dict.fromkeys(ranked) for order in orders for cut in order.cuts(hosts, proportions))
    return list(dict.fromkeys(found))


def _best_devices(intervals: _Intervals, proportions: Sequence[float]) -> list[Hosts]:
    """Return orders of devices, the best first."""
    space = intervals.space
    used = min(space.stages, len(space.kinds))
    most = max(8, min(_MOST_ORDERS, int(_MOST_STEPS / (used * (len(intervals.order) + 1) ** 2))))
    orders = list(islice(space.device_orders(used), most + 1))
    if len(orders) == 1:
        return orders
    if too_many := len(orders) > most:
        # From the listed order on, and from that of the devices' speed or memory, devices are exchanged as long as that helps.
        least = proportions or [1 / sum(own.inner) for own in intervals.table.seconds]
        best = sorted(range(len(space.kinds)), key=lambda device: -least[device])[:used]
        orders = [orders[0], tuple(sorted(best) if space.listed else best)]
    values = {order: intervals.value(order, proportions) for order in orders}
    helps = too_many
    while helps:
        first, helps = min(values, key=values.__getitem__), False
        for order in space.exchanged(first):
            if order not in values and len(values) < most:
                values[order] = intervals.value(order, proportions)
                if helps := values[order] < values[first]:
                    break
    return sorted(values, key=values.__getitem__)


@define(kw_only=True, eq=False, slots=False)
class _Intervals:
    """One order of units, cut into intervals; the row of an array is where an interval begins, its column where it ends."""

    space: Space
    table: NodeTable
    order: Sequence[Sequence[int]]
    _work: dict[tuple[int, bool], Array] = field(init=False, factory=dict)

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

    def value(self, hosts: Hosts, proportions: Sequence[float]) -> float:
        """Return the share of the fullest device in the best cut, or the seconds of the busiest, or of the whole way shared by those on it."""
        if proportions:
            return float(_rests(self._shares(hosts, proportions), np.maximum)[0][0])
        seconds, total = self._seconds(hosts)
        way = float(_rests(total, np.add)[0][0]) / self.table.in_flight(self.space.stages - 1)[0]
        return max(float(_rests(seconds, np.maximum)[0][0]), way)

    def _sums(self, values: Sequence[float]) -> Array:
        """Return the sums of nodes' values over all intervals; infinite for empty ones."""
        sums = np.array([0.0, *accumulate(sum(values[node] for node in unit) for unit in self.order)])
        return np.where(np.arange(len(sums))[:, None] < np.arange(len(sums)), sums[None, :] - sums[:, None], inf)

    @cached_property
    def _crossing(self) -> Array:
        """The bytes that cross each boundary forwards, and backwards."""
        place = {node: at for at, unit in enumerate(self.order) for node in unit}
        found = np.zeros((2, len(self.order) + 1))
        for message in self.table.messages:
            first, last = sorted((place[message.producer], place[message.consumer]))
            found[:, first + 1 : last + 1] += [[message.forward], [message.backward]]
        return found

    def _seconds(self, hosts: Hosts) -> tuple[list[Array], list[Array]]:
        """Return the seconds of each device's work, or of its messages if these take longer; and of its work and its messages."""
        devices, largest, total = self.space.inputs.devices, list[Array](), list[Array]()
        for at, host in enumerate(hosts):
            last = at == len(hosts) - 1 == self.space.stages - 1
            if (host, last) not in self._work:
                own = self.table.seconds[host]
                self._work[host, last] = self._sums(own.last if last else own.inner) + own.stage
            work, arrives = self._work[host, last], np.zeros((2, len(self.order) + 1))
            if at:
                link = devices[hosts[at - 1]].link_to(devices[host])
                arrives = self._crossing / link.bytes_per_second + link.latency_seconds
            largest.append(np.maximum(work, arrives.max(axis=0)[:, None]))
            total.append(work + arrives.sum(axis=0)[:, None])
        return largest, total

    @cached_property
    def _distances(self) -> Mapping[int, int]:
        """Of the stages that are given, to the head's."""
        graph = self.space.inputs.graph
        members = [[graph.order[node] for node in unit] for unit in self.order]
        return {} if self.space.given is None else distances(stage_graph(graph.digraph, members))

    def _shares(self, hosts: Hosts, proportions: Sequence[float]) -> list[Array]:
        """Return about what each device holds, in parts of its limit."""
        nodes, stages, found = self.table.nodes, self.space.stages, []
        working = np.array([0.0, *(max(nodes[node].working for node in unit) for unit in self.order)])
        most = np.maximum.accumulate(np.triu(np.tile(working, (len(working), 1)), 1), axis=1)
        channels = NEIGHBOUR_CAPACITY * (self._crossing[0][:, None] + self._crossing[1][None, :])
        for at, host in enumerate(hosts):
            kept, opening = [0.0] * len(nodes), np.zeros(len(self.order) + 1)
            for place, unit in enumerate(self.order):
                # If stages are not given, a node's is about as far from the head's as its device from the last one.
                about = stages - 1 - at * stages // len(hosts)
                depth, versions = self.table.in_flight(self._distances.get(place + 1, about))
                for node in unit:
                    own = nodes[node]
                    joins = own.joins in unit or (place > 0 and own.joins == self.order[place - 1][-1])
                    kept[node] = own.resident + versions * own.version + (0 if joins else depth * own.buffer)
                    # An interval that begins between two nodes which one stored input would serve stores an input more.
                    if joins and own.joins not in unit:
                        opening[place] += depth * own.buffer
            held = self._sums(kept) + opening[:, None] + most + channels
            unlimited = proportions[host] == inf
            found.append(np.where(np.isfinite(held), 0.0, inf) if unlimited else held / proportions[host])
        return found

    def _staged(self, bounds: Sequence[int], hosts: Hosts) -> Cut:
        """Cut the devices' intervals into stages, so that stages take about as long as one another."""
        spans, owners = list(pairwise(bounds)), list[int]()
        if self.space.given is not None:
            owners = [host for host, (a, b) in zip(hosts, spans, strict=True) for _ in range(a, b)]
            return Cut(self.space.given, tuple(owners))
        work = [self._work[host, (host, False) not in self._work] for host in hosts]
        numbers = [1] * len(hosts)
        for _ in range(self.space.stages - len(hosts)):
            more = [at for at, (a, b) in enumerate(spans) if numbers[at] < b - a]
            numbers[max(more, key=lambda at: float(work[at][spans[at]]) / numbers[at])] += 1
        stages = [0] * len(self.table.nodes)
        for own, host, (a, b), number in zip(work, hosts, spans, numbers, strict=True):
            inside = own[a : b + 1, a : b + 1]
            ends = _bounds([inside] * number, [inside**2] * number)
            assert ends is not None, "the interval has enough nodes"
            for begin, end in pairwise(ends):
                for node in (node for unit in self.order[a + begin : a + end] for node in unit):
                    stages[node] = len(owners)
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
