"""Cuts: the stage of every node, the device of every stage, what every node keeps, and how these change.

    order     stem  a  b  c  head          the graph's topological order
    stages     0    0  1  1   2            no edge leads to an earlier stage, no stage is empty
    hosts      0    0  1                   the device of stages 0, 1 and 2; each device has neighbours

Any cut into an acyclic graph of stages can be written so, its stages numbered in some topological order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import cached_property
from itertools import combinations
from typing import NamedTuple, get_args

import networkx as nx
from attrs import frozen

from petra_graph.compiler.node_table import NodeTable
from petra_graph.spec.model import BufferedKeeps, Keeps

Hosts = tuple[int, ...]


class Cut(NamedTuple):
    """Stages on devices, with what nodes keep: nodes, stages and devices are numbers, in the order of graph, pipeline and specification.

    No edge leads to an earlier stage, no stage is empty, and the stages of a device are neighbours.
    """

    stages: tuple[int, ...]
    """Of every node."""
    hosts: Hosts
    """Of every stage."""
    keeps: tuple[Keeps, ...] = ()
    """Of every node, where that is open."""


@frozen(kw_only=True, eq=False, slots=False)
class Space:
    """What may be chosen."""

    table: NodeTable
    stages: int
    """Their number."""
    given: tuple[int, ...] | None = None
    """The stage of every node, where stages are given."""
    hosts: Hosts | None = None
    """The device of every stage, where these are given as well."""

    @cached_property
    def kinds(self) -> Sequence[Hashable]:
        """Of every device."""
        return [self.table.inputs.kind_of(device) for device in self.table.inputs.devices]

    @cached_property
    def listed(self) -> bool:
        """Whether devices keep their listed order, because they differ by their machine alone."""
        return self.table.inputs.alike

    @cached_property
    def units(self) -> Sequence[Sequence[int]]:
        """The nodes that change their stage together: those that share a parameter, or that are given as a stage, and the others alone."""
        inputs, count = self.table.inputs, len(self.table.nodes)
        if self.given is not None:
            return [[node for node in range(count) if self.given[node] == stage] for stage in range(self.stages)]
        position = {name: place for place, name in enumerate(inputs.graph.order)}
        together = [[position[name] for name in names] for names in inputs.together]
        bound = {node for nodes in together for node in nodes}
        return [*together, *([node] for node in range(count) if node not in bound)]

    @cached_property
    def node_orders(self) -> Sequence[Sequence[Sequence[int]]]:
        """The units in topological orders: as listed, breadth first, depth first from both ends."""
        if self.given is not None:
            return [self.units]
        unit_of = {node: place for place, unit in enumerate(self.units) for node in unit}
        merged = nx.DiGraph()
        merged.add_nodes_from(range(len(self.units)))
        ends = ((unit_of[edge.producer], unit_of[edge.consumer]) for edge in self.table.messages)
        merged.add_edges_from(pair for pair in ends if pair[0] != pair[1])
        backwards, clock = merged.reverse(copy=False), iter(range(4 * len(self.units) ** 2 + 4))
        sort = nx.lexicographical_topological_sort
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
        for hosts in self._other_hosts(cut.hosts) if self.hosts is None else ():
            changed = zip(cut.hosts, hosts, strict=True)
            if fullest is None or any(one != other and fullest in (one, other) for one, other in changed):
                yield cut._replace(hosts=hosts)
        for unit in self.units if self.given is None else ():
            if fullest in (None, cut.hosts[cut.stages[unit[0]]]):
                for other in self._other_stages(cut, unit):
                    stages = tuple(other if node in unit else own for node, own in enumerate(cut.stages))
                    yield cut._replace(stages=stages)
        for node in range(len(cut.keeps) if fullest is not None else 0):
            kind = self.table.inputs.graph.nodes[self.table.inputs.graph.order[node]].kind
            if kind != "head" and cut.hosts[cut.stages[node]] == fullest:
                for other in get_args(Keeps if kind == "reversible" else BufferedKeeps):
                    yield cut._replace(keeps=(*cut.keeps[:node], other, *cut.keeps[node + 1 :]))

    def _other_stages(self, cut: Cut, unit: Sequence[int]) -> Iterator[int]:
        """Yield the stages next to a unit's own in which no edge would lead to an earlier stage."""
        stage = cut.stages[unit[0]]
        if cut.stages.count(stage) == len(unit):
            return
        before = [
            cut.stages[one.producer] for one in self.table.messages if one.consumer in unit and one.producer not in unit
        ]
        behind = [
            cut.stages[one.consumer] for one in self.table.messages if one.producer in unit and one.consumer not in unit
        ]
        if stage and max(before, default=0) < stage:
            yield stage - 1
        if behind and min(behind) > stage:
            yield stage + 1

    def _other_hosts(self, hosts: Hosts) -> Iterator[Hosts]:
        """Yield the devices with two exchanged, one of which may be spare, or one stage on its neighbour's device."""
        if not self.listed:
            yield from exchanged(hosts, self.kinds, listed=False)
        for stage, host in enumerate(hosts):
            before = hosts[stage - 1] if stage else -1
            after = hosts[stage + 1] if stage + 1 < len(hosts) else len(self.kinds)
            others = list[int]()
            if hosts.count(host) > 1:
                others = [one for one in (before, after) if 0 <= one < len(self.kinds) and one != host]
            elif self.listed and len(hosts) < len(self.kinds):
                others = [one for one in range(before + 1, after) if self.kinds[one] != self.kinds[host]]
            for other in others:
                yield (*hosts[:stage], other, *hosts[stage + 1 :])


def exchanged(hosts: Hosts, kinds: Sequence[Hashable], *, listed: bool) -> Iterator[Hosts]:
    """Yield the devices with two of different kinds exchanged, one of which may be spare."""
    for one, other in combinations(range(len(kinds)), 2):
        if kinds[one] != kinds[other] and (one in hosts or other in hosts):
            exchange = {one: other, other: one}
            found = tuple(exchange.get(host, host) for host in hosts)
            if not listed or list(found) == sorted(found):
                yield found
