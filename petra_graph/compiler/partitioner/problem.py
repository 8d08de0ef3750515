"""The partition problem: items with their costs, edges between them, devices, and an objective.

A table of costs is all that the partitioner sees, so it takes a profile from anywhere. Times are those of one
micro-batch's forward and backward; bytes are one replica's. Data-parallel replicas are copies of the whole pipeline:
give the devices of one.

    bytes of a stage at distance J-j = delta
        resident                   of its items
        buffers  x depth(delta)    an item that joins the one before it in its stage stores nothing
        versions x ceil(staleness(delta) / k), at most `most_versions`
    bytes of a device
        the sum over its stages, the largest working set of its items (it does one operation at a time), and the
        capacity of its channels from other devices
    tick of a device
        its work, or the time of its messages where that is longer: transfers overlap computation. Messages from earlier
        devices, to earlier ones, from later ones and to later ones do not wait for one another
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from math import inf, isfinite
from typing import Literal

import networkx as nx
from attrs import astuple, define, frozen

from petra_graph.errors import Problem, SpecError, shown
from petra_graph.program.schedule import depths
from petra_graph.spec.model import Flush, ScheduleName
from petra_graph.units import plural

Objective = Literal["balanced", "memory"]


@frozen(kw_only=True)
class Item:
    """A node, or any other unit that goes to one stage as a whole."""

    name: str
    seconds: float = 0.0
    """Forward and backward of one micro-batch on a device of speed 1."""
    resident_bytes: int = 0
    """Parameters, gradients and optimizer state."""
    buffer_bytes: int = 0
    """Stored for each micro-batch in flight: the input, or the graph."""
    version_bytes: int = 0
    """One more version of the parameters."""
    working_bytes: int = 0
    """The largest operation's own."""
    joins: bool = False
    """Whether it may share a buffer: a chain of joining items in one stage stores the first one's input alone."""


@frozen(kw_only=True)
class ItemEdge:
    """An edge, with the bytes that cross for each micro-batch if its ends are on two devices."""

    producer: str
    consumer: str
    forward_bytes: int = 0
    backward_bytes: int = 0


@frozen(kw_only=True)
class DeviceBudget:
    """One device; the order in the problem is the order of the pipeline."""

    name: str
    speed: float = 1.0
    item_seconds: tuple[float, ...] | None = None
    """Of each item on this device, in the problem's order; None is its seconds divided by the speed."""
    stage_seconds: float = 0.0
    """Of each stage, whatever its items."""
    memory_bytes: int | None = None
    """None: unlimited."""


@frozen(kw_only=True)
class DepthRule:
    """Depth and staleness of a stage, as functions of its distance to the head's stage."""

    schedule: ScheduleName = "sequential"
    accumulation: int = 1
    flush: Flush = "drain"
    most_versions: float = inf
    """1 where the versions are for a delay, predicted or estimated, of which a stage holds one at a time."""

    def depth(self, distance: int) -> int:
        """Return a stage's micro-batches in flight."""
        (depth,) = depths(self.schedule, [distance], self.accumulation)
        return min(depth, self.accumulation) if self.flush == "window" else depth

    def staleness(self, distance: int) -> int:
        """Return a stage's staleness in micro-batches."""
        return 0 if self.flush == "window" else self.depth(distance) - 1

    def versions(self, distance: int) -> int:
        """Return the further versions of its parameters that a stage keeps: older ones, or one for a delay."""
        return int(min(-(-self.staleness(distance) // self.accumulation), self.most_versions))


@define(kw_only=True, eq=False)
class PartitionProblem:
    """Items in topological order, to be cut into stages on devices."""

    items: Sequence[Item]
    edges: Sequence[ItemEdge]
    devices: Sequence[DeviceBudget]
    stages: int | None = None
    """None is one a device."""
    objective: Objective = "balanced"
    """"balanced" makes the slowest device's tick least, "memory" the fullest device's bytes."""
    link_bytes_per_second: float = inf
    """Between any two devices."""
    channel_capacity: int = 0
    """Received messages that a channel has memory for."""
    depth_rule: DepthRule = DepthRule()
    keeps_order: bool = False
    """Whether the listed order is the only one to consider, though the edges may allow others."""

    def __attrs_post_init__(self) -> None:
        problems = list(_problems(self))
        if problems:
            raise SpecError(problems)

    @property
    def stage_count(self) -> int:
        return len(self.devices) if self.stages is None else self.stages

    @cached_property
    def index(self) -> Mapping[str, int]:
        return {item.name: index for index, item in enumerate(self.items)}

    @cached_property
    def ends(self) -> tuple[tuple[int, int], ...]:
        """Each edge's producer and consumer by their positions."""
        return tuple((self.index[edge.producer], self.index[edge.consumer]) for edge in self.edges)

    @cached_property
    def graph(self) -> nx.DiGraph:
        """The items' positions as a graph."""
        graph = nx.DiGraph()
        graph.add_nodes_from(range(len(self.items)))
        graph.add_edges_from(self.ends)
        return graph

    @cached_property
    def joined(self) -> tuple[int | None, ...]:
        """For each item, the one behind which it stores nothing if it stands right before it in its stage.

        Both join, and nothing enters or leaves between them: one's only reader is the other's only input.
        """
        found: list[int | None] = [None] * len(self.items)
        for before, index in self.graph.edges:
            only = self.graph.out_degree(before) == self.graph.in_degree(index) == 1
            if only and self.items[before].joins and self.items[index].joins:
                found[index] = before
        return tuple(found)

    @cached_property
    def device_seconds(self) -> tuple[tuple[float, ...], ...]:
        """Each item's seconds on each device; devices of one speed share a tuple."""
        scaled = {
            speed: tuple(item.seconds / speed for item in self.items)
            for speed in {device.speed for device in self.devices if device.item_seconds is None}
        }
        return tuple(
            scaled[device.speed] if device.item_seconds is None else device.item_seconds for device in self.devices
        )

    @property
    def limits(self) -> tuple[float, ...]:
        return tuple(inf if device.memory_bytes is None else float(device.memory_bytes) for device in self.devices)


def _problems(problem: PartitionProblem) -> Iterator[Problem]:
    seen: set[str] = set()
    for item in problem.items:
        if item.name in seen:
            yield Problem(message=f"two items are named {shown(item.name)}", hint="name every item differently")
        seen.add(item.name)
        costs = astuple(item)[1:-1]
        if not all(isfinite(cost) and cost >= 0 for cost in costs):
            yield Problem(message=f"item {shown(item.name)} has costs {costs}", hint="costs are finite, at least 0")
    for edge in problem.edges:
        unknown = [name for name in (edge.producer, edge.consumer) if name not in seen]
        if unknown:
            yield Problem(message=f"an edge names {shown(unknown[0])}, which is not an item", hint="list it as an item")
        elif problem.index[edge.producer] >= problem.index[edge.consumer]:
            message = f"{shown(edge.consumer)} reads {shown(edge.producer)}, which is not listed before it"
            yield Problem(message=message, hint="list the items in topological order")
    yield from _device_problems(problem)
    if not 1 <= len(problem.devices) <= problem.stage_count <= len(problem.items):
        counts = f"{plural(len(problem.items), 'item')}, {plural(problem.stage_count, 'stage')} and {plural(len(problem.devices), 'device')}"
        yield Problem(
            message=f"{counts} leave a stage or a device empty",
            hint="give at least one device, at least as many stages as devices, and no more stages than items",
        )


def _device_problems(problem: PartitionProblem) -> Iterator[Problem]:
    for device in problem.devices:
        if not (isfinite(device.speed) and device.speed > 0):
            message = f"device {shown(device.name)} has speed {device.speed}"
            yield Problem(message=message, hint="a speed is a finite number above 0")
        if device.item_seconds is not None and len(device.item_seconds) != len(problem.items):
            message = (
                f"device {shown(device.name)} has {len(device.item_seconds)} seconds for {len(problem.items)} items"
            )
            yield Problem(message=message, hint="give one number an item")
