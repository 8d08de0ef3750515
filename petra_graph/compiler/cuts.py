"""Cuts as positions: the stage of every node and the device of every stage, how they change, and which orders of devices are tried.

    order     stem  a  b  c  head          the graph's topological order
    stages     0    0  1  1   2            no edge leads to an earlier stage, no stage is empty
    hosts      0    0  1                   the device of stages 0, 1 and 2; each device has neighbours

Any cut into an acyclic graph of stages can be written so, its stages numbered in some topological order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations, islice
from typing import NamedTuple

from attrs import define

Stages = tuple[int, ...]
Hosts = tuple[int, ...]
_MOST = 720
"""Orders of devices that are tried, at most: all of six unlike devices."""
_MOST_STEPS = 3e7
"""Intervals of nodes that may be looked at for all of them."""


class Cut(NamedTuple):
    """Stages on devices."""

    stages: Stages
    """Of every node."""
    hosts: Hosts
    """Of every stage."""


@define(kw_only=True, frozen=True, eq=False, slots=False)
class CutSpace:
    """The cuts of a graph into a number of stages, or the devices of given stages."""

    edges: Sequence[tuple[int, int]]
    """Of nodes, by their positions."""
    count: int
    """Number of nodes."""
    stages: int
    """Number of stages."""
    kinds: Sequence[Hashable]
    """Of every device."""
    listed: bool = True
    """Whether devices keep the order in which they are listed."""
    together: Sequence[Sequence[int]] = ()
    """Nodes that are in one stage, with all nodes between them."""
    fixed: Stages | None = None
    """The stages, where they are given."""

    @cached_property
    def producers(self) -> Sequence[Sequence[int]]:
        return _grouped(self.count, ((b, a) for a, b in self.edges))

    @cached_property
    def consumers(self) -> Sequence[Sequence[int]]:
        return _grouped(self.count, self.edges)

    @cached_property
    def units(self) -> Sequence[Sequence[int]]:
        """The nodes that change their stage together: those of each set, and the others alone."""
        bound = {node for nodes in self.together for node in nodes}
        return [*self.together, *([node] for node in range(self.count) if node not in bound)]

    @property
    def noun(self) -> str:
        """What is chosen, for people."""
        return "cut" if self.fixed is None else "placement"

    @property
    def terms(self) -> str:
        """Which placements are considered, for people."""
        order = ", devices in their listed order" if self.listed and len(set(self.kinds)) > 1 else ""
        if self.stages > len(self.kinds) > 1:
            return f", every device hosting neighbouring stages{order}"
        return order

    def neighbours(self, cut: Cut) -> Iterator[Cut]:
        """Yield the cuts that differ by one unit's stage or one stage's device."""
        yield from self._other_hosts(cut)
        if self.fixed is not None:
            return
        sizes = [cut.stages.count(stage) for stage in range(len(cut.hosts))]
        for unit in self.units:
            stage = cut.stages[unit[0]]
            if sizes[stage] == len(unit):
                continue
            before = {one for node in unit for one in self.producers[node]}.difference(unit)
            behind = {one for node in unit for one in self.consumers[node]}.difference(unit)
            earliest = max((cut.stages[one] for one in before), default=0)
            latest = min((cut.stages[one] for one in behind), default=stage)
            for other in range(max(earliest, stage - 1), min(latest, stage + 1) + 1):
                if other != stage:
                    yield cut._replace(
                        stages=tuple(other if node in unit else own for node, own in enumerate(cut.stages))
                    )

    def _other_hosts(self, cut: Cut) -> Iterator[Cut]:
        hosts, devices = cut.hosts, len(self.kinds)
        shared = len(hosts) > devices
        if not self.listed:
            yield from self._exchanged(cut)
        for stage, host in enumerate(hosts):
            before = hosts[stage - 1] if stage else -1
            after = hosts[stage + 1] if stage + 1 < len(hosts) else devices
            if not shared:
                between = set(range(before + 1, after)).difference(hosts)
                others = [one for one in sorted(between) if self.kinds[one] != self.kinds[host]]
            elif hosts.count(host) > 1:
                others = [one for one in (before, after) if 0 <= one < devices and one != host]
            else:
                others = []
            for other in others:
                yield cut._replace(hosts=(*hosts[:stage], other, *hosts[stage + 1 :]))

    def _exchanged(self, cut: Cut) -> Iterator[Cut]:
        """Yield the cut with two devices of different kinds exchanged, one of which may be spare."""
        for one, other in combinations(range(len(self.kinds)), 2):
            if self.kinds[one] != self.kinds[other] and (one in cut.hosts or other in cut.hosts):
                exchange = {one: other, other: one}
                yield cut._replace(hosts=tuple(exchange.get(host, host) for host in cut.hosts))


def device_orders(kinds: Sequence[Hashable], used: int, *, listed: bool) -> Iterator[Hosts]:
    """Yield the orders of some devices, the listed one first; those that differ only by devices of one kind are yielded once.

    Args:
        kinds: of every device.
        used: number of devices in an order.
        listed: devices keep the order in which they are listed.
    """

    def rest(chosen: Hosts) -> Iterator[Hosts]:
        missing = used - len(chosen)
        if not missing:
            yield chosen
            return
        first = chosen[-1] + 1 if listed and chosen else 0
        seen = set()
        for device in range(first, len(kinds) - (missing - 1) * listed):
            if device not in chosen and kinds[device] not in seen:
                seen.add(kinds[device])
                yield from rest((*chosen, device))

    return rest(())


def best_orders(
    kinds: Sequence[Hashable],
    used: int,
    *,
    listed: bool,
    value: Callable[[Hosts], float],
    nodes: int,
    begin: Sequence[int],
) -> list[Hosts]:
    """Return orders of some devices, those with the least values first.

    If there are too many to try them all, devices are exchanged from a first order on, as long as that lowers the value.

    Args:
        kinds: of every device; those of one kind can take each other's place.
        used: number of devices in an order.
        listed: devices keep the order in which they are listed.
        value: of an order.
        nodes: of the network, or stages that are given; finding a value takes time by their square.
        begin: the devices that are best by themselves, first.
    """
    most = max(8, min(_MOST, int(_MOST_STEPS / (used * (nodes + 1) ** 2))))
    orders = list(islice(device_orders(kinds, used, listed=listed), most + 1))
    if len(orders) == 1:
        return orders
    if len(orders) <= most:
        values = {order: value(order) for order in orders}
    else:
        best = tuple(sorted(begin[:used]) if listed else begin[:used])
        values = {order: value(order) for order in (orders[0], best)}
        changed = True
        while changed and len(values) < most:
            best, changed = min(values, key=values.__getitem__), False
            for order in _exchanged(best, kinds, listed=listed):
                if order not in values and len(values) < most:
                    values[order] = value(order)
                    if changed := values[order] < values[best]:
                        break
    return sorted(values, key=values.__getitem__)


def _exchanged(order: Hosts, kinds: Sequence[Hashable], *, listed: bool) -> Iterator[Hosts]:
    """Yield the order with one device replaced by another kind's first spare one, or exchanged with one of another kind."""
    spare = {kinds[device]: device for device in reversed(range(len(kinds))) if device not in order}
    for place, device in enumerate(order):
        for kind, other in spare.items():
            if kind != kinds[device]:
                replaced = (*order[:place], other, *order[place + 1 :])
                yield tuple(sorted(replaced)) if listed else replaced
    for place, device in enumerate(order):
        for later in range(place + 1, 0 if listed else len(order)):
            if kinds[order[later]] != kinds[device]:
                exchange = {device: order[later], order[later]: device}
                yield tuple(exchange.get(host, host) for host in order)


def _grouped(count: int, pairs: Iterable[tuple[int, int]]) -> Sequence[Sequence[int]]:
    found: list[list[int]] = [[] for _ in range(count)]
    for key, value in pairs:
        found[key].append(value)
    return found


def named(cut: Cut, order: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the names of the nodes of each stage."""
    found: list[list[str]] = [[] for _ in cut.hosts]
    for name, stage in zip(order, cut.stages, strict=True):
        found[stage].append(name)
    return [tuple(names) for names in found]


def cut_of(stages: Sequence[Sequence[str]], hosts: Sequence[int], order: Sequence[str]) -> Cut:
    """Return the cut of stages that are given by their nodes' names."""
    stage_of: Mapping[str, int] = {name: stage for stage, names in enumerate(stages) for name in names}
    return Cut(tuple(stage_of[name] for name in order), tuple(hosts))
