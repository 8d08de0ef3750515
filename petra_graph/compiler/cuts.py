"""Cuts as positions: the stage of every node and the device of every stage, how they change, and all of them.

    order     stem  a  b  c  head          the graph's topological order
    stages     0    0  1  1   2            no edge leads to an earlier stage, no stage is empty
    hosts      0    0  1                   the device of stages 0, 1 and 2; each device has neighbours

Any cut into an acyclic graph of stages can be written so, its stages numbered in some topological order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, combinations, islice, pairwise
from typing import NamedTuple

from attrs import define

CHOICES = 720
"""Orders of devices that are considered, at most: all of six unlike ones."""
_MOST_NODES = 300
"""Of a graph whose cuts are enumerated."""
_STEPS = 30_000
"""Of an enumeration."""
_CUTS = 4_000
"""That are sorted, at most."""
Stages = tuple[int, ...]
Hosts = tuple[int, ...]


class Account(NamedTuple):
    """The seconds that nodes and stages add to a device's tick."""

    inner: Sequence[float]
    """Of every node before the last stage."""
    last: Sequence[float]
    """Of every node in the last stage."""
    stage: float
    """Of a stage, whatever its nodes."""


class Cut(NamedTuple):
    """Stages on devices."""

    stages: Stages
    """Of every node."""
    hosts: Hosts
    """Of every stage."""


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


def spread(order: Hosts, stages: int) -> Iterator[Hosts]:
    """Yield the ways to give stages to devices in an order, neighbours together, every device having one at least."""
    for changes in combinations(range(1, stages), len(order) - 1):
        yield tuple(
            device for device, (a, b) in zip(order, pairwise([0, *changes, stages]), strict=True) for _ in range(a, b)
        )


@define(kw_only=True, frozen=True, eq=False, slots=False)
class CutSpace:
    """All cuts of a graph into a number of stages, or all devices of given stages."""

    edges: Sequence[tuple[int, int]]
    """Of nodes, by their positions."""
    count: int
    """Number of nodes."""
    stages: int
    """Number of stages."""
    kinds: Sequence[Hashable]
    """Of every device."""
    orders: Sequence[Hosts] | None
    """Of the devices that are used; None where they are too many."""
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

    @cached_property
    def first(self) -> Sequence[int]:
        """Of every node, the first one of its unit."""
        found = list(range(self.count))
        for unit in self.together:
            for node in unit:
                found[node] = unit[0]
        return found

    @cached_property
    def one_order(self) -> bool:
        return all(node - 1 in self.producers[node] for node in range(1, self.count))

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

    def all_below(
        self, accounts: Sequence[Account], limit: float, bound: Callable[[Hosts], float] = lambda _: 0.0
    ) -> list[Cut] | None:
        """Return all cuts whose every device has less than `limit`, None where they are too many to look at.

        Args:
            accounts: of every device.
            limit: what a device has to stay below.
            bound: what no cut on an order of devices is below.
        """
        steps = iter(range(_STEPS))
        hosts = chain.from_iterable(spread(order, self.stages) for order in self.orders or () if bound(order) < limit)
        try:
            found = list(
                islice(chain.from_iterable(self.below(one, accounts, limit, steps) for one in hosts), _CUTS + 1)
            )
        except OutOfSteps:
            return None
        return None if self.orders is None or len(found) > _CUTS else found

    def below(self, hosts: Hosts, accounts: Sequence[Account], seconds: float, steps: Iterator[int]) -> Iterator[Cut]:
        """Yield those on these devices, as far as `steps` go; of given stages, the cut as it is.

        Raises:
            OutOfSteps: there are no more steps, or too many nodes for any number of them.
        """
        if self.fixed is not None:
            if next(steps, None) is None:
                raise OutOfSteps
            yield Cut(self.fixed, hosts)
        elif self.count > _MOST_NODES:
            raise OutOfSteps
        else:
            yield from _Enumeration(self, hosts, accounts, seconds, steps).rest(0)


class _Enumeration:
    """The cuts on given devices, node by node in topological order."""

    def __init__(
        self, space: CutSpace, hosts: Hosts, accounts: Sequence[Account], seconds: float, steps: Iterator[int]
    ) -> None:
        self._space = space
        self._hosts = hosts
        self._accounts = accounts
        self._seconds = seconds
        self._steps = steps
        self._chosen: list[int] = []
        self._sizes = [0] * len(hosts)
        self._load = [0.0] * len(accounts)
        for host in hosts:
            self._load[host] += accounts[host].stage

    def rest(self, node: int) -> Iterator[Cut]:
        """Yield the cuts in which the nodes before `node` have the stages that are chosen now."""
        if next(self._steps, None) is None:
            raise OutOfSteps
        if node == self._space.count:
            yield Cut(tuple(self._chosen), self._hosts)
            return
        last = len(self._hosts) - 1
        for stage in self._possible(node):
            host = self._hosts[stage]
            before = self._load[host]
            after = before + (self._accounts[host].last if stage == last else self._accounts[host].inner)[node]
            empty = self._sizes.count(0) - (self._sizes[stage] == 0)
            if after >= self._seconds or empty > self._space.count - node - 1:
                continue
            self._load[host] = after
            self._sizes[stage] += 1
            self._chosen.append(stage)
            yield from self.rest(node + 1)
            self._load[host] = before
            self._sizes[stage] -= 1
            self._chosen.pop()

    def _possible(self, node: int) -> range:
        """Return the stages that a node can have after those that it reads; the head's is the last, and a unit has one."""
        last = len(self._hosts) - 1
        earliest = max((self._chosen[one] for one in self._space.producers[node]), default=0)
        latest = last
        if node == self._space.count - 1:
            earliest = last
        elif self._space.one_order:
            latest = min(self._chosen[-1] + 1 if self._chosen else 0, last)
        first = self._space.first[node]
        if first != node:
            earliest, latest = max(earliest, self._chosen[first]), min(latest, self._chosen[first])
        return range(earliest, latest + 1)


def _grouped(count: int, pairs: Iterable[tuple[int, int]]) -> Sequence[Sequence[int]]:
    found: list[list[int]] = [[] for _ in range(count)]
    for key, value in pairs:
        found[key].append(value)
    return found


class OutOfSteps(Exception):
    """There are more cuts than steps to look at them."""


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
