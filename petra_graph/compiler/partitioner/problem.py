"""What is to be cut: items with their costs, wires between them, devices, and what counts.

A table of costs is all that the solver sees, so a profile from anywhere can be fed to it. Times are those of one
micro-batch's forward and backward; bytes are one replica's. Data-parallel replicas are copies of the whole pipeline:
give the devices of one.

    bytes of a stage at distance J-j = delta
        resident                   of its items
        buffers  x depth(delta)    an item that joins the one before it in its stage stores nothing
        versions x ceil(staleness(delta) / k)
    bytes of a device
        the sum over its stages, the largest working set of its items (it does one operation at a time), and the slots
        of its wires to other devices
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from math import isfinite
from typing import Literal, TypeVar

import numpy as np
from attrs import define, frozen
from numpy.typing import NDArray

from petra_graph.errors import Problem, SpecError, shown
from petra_graph.program.schedule import depths
from petra_graph.spec.model import Flush, Keeps, Kind, ScheduleName, Uses

Objective = Literal["balanced", "memory"]
Amount = TypeVar("Amount", float, NDArray[np.float64])


def units(kind: Kind, keeps: Keeps, backward: Uses) -> int:
    """Return a micro-batch's work at a node in units of its forward, a backward being 2.

    A head and a kept graph need 1 + 2; a recomputed or reconstructed node one forward more; a node that reconstructs
    with current parameters and differentiates at stored ones two more.
    """
    if kind == "head" or keeps == "graph":
        return 3
    return 5 if keeps == "nothing" and backward == "stored" else 4


@frozen(kw_only=True)
class Item:
    """A node, or anything else that goes to one stage as a whole."""

    name: str
    seconds: float = 0.0
    """Forward and backward of one micro-batch on a device of speed 1, every unit of work counted."""
    resident_bytes: int = 0
    """Parameters, gradients and optimizer state."""
    buffer_bytes: int = 0
    """What it stores for every micro-batch in flight: its input, or its graph."""
    version_bytes: int = 0
    """One more version of its parameters."""
    working_bytes: int = 0
    """What an operation needs for its own time."""
    joins: bool = False
    """Whether it may share a buffer: a chain of joining items in one stage stores the first one's input alone."""


@frozen(kw_only=True)
class ItemEdge:
    """An edge: what crosses, if its ends are on two devices, for every micro-batch."""

    producer: str
    consumer: str
    forward_bytes: int = 0
    backward_bytes: int = 0


@frozen(kw_only=True)
class DeviceBudget:
    """One device; the order in the task is the order of the pipeline."""

    name: str
    speed: float = 1.0
    memory_bytes: int | None = None
    """None is no limit."""


@frozen(kw_only=True)
class LinkCost:
    """What a wire between two devices costs; between two stages of one device it costs nothing.

    A wire carries two messages a micro-batch. Each takes its latency and its bytes of both devices' time, or, where
    messages and work overlap, a device's tick is at least the time of its wires' bytes.
    """

    latency_seconds: float = 0.0
    bytes_per_second: float | None = None
    """None is no limit."""
    overlapped: bool = False
    slots: int = 0
    """Received messages that each wire has room for."""

    def seconds(self, messages: Amount, total_bytes: Amount) -> Amount:
        """Return how long `messages` with `total_bytes` in all keep a device busy."""
        sending = total_bytes / self.bytes_per_second if self.bytes_per_second is not None else 0.0 * total_bytes
        return sending if self.overlapped else sending + self.latency_seconds * messages

    def tick(self, work: Amount, wires: Amount) -> Amount:
        """Return a device's tick from the seconds of its work and of its wires."""
        return np.maximum(work, wires) if self.overlapped else work + wires


@frozen(kw_only=True)
class DepthRule:
    """How far a stage's forwards run ahead, as its distance to the head's stage decides it."""

    schedule: ScheduleName = "sequential"
    accumulation: int = 1
    flush: Flush = "drain"

    def depth(self, distance: int) -> int:
        """Return how many micro-batches a stage has in flight."""
        (depth,) = depths(self.schedule, [distance], self.accumulation)
        return min(depth, self.accumulation) if self.flush == "window" else depth

    def staleness(self, distance: int) -> int:
        """Return how many micro-batches younger the parameters are in the backward."""
        return 0 if self.flush == "window" else self.depth(distance) - 1

    def versions(self, distance: int) -> int:
        """Return how many older versions of its parameters a stage keeps, where the method keeps them."""
        return -(-self.staleness(distance) // self.accumulation)


@define(kw_only=True, eq=False)
class PartitionProblem:
    """Items in topological order, to be cut into stages on devices."""

    items: Sequence[Item]
    wires: Sequence[ItemEdge]
    devices: Sequence[DeviceBudget]
    stages: int | None = None
    """None is one a device."""
    objective: Objective = "balanced"
    """"balanced" makes the slowest device's tick least, "memory" the fullest device's bytes."""
    link: LinkCost = LinkCost()
    ahead: DepthRule = DepthRule()
    keeps_order: bool = False
    """Whether the listed order is the only one to consider, though wires may leave others."""

    def __attrs_post_init__(self) -> None:
        problems = list(_problems(self))
        if problems:
            raise SpecError(problems)

    @property
    def stage_count(self) -> int:
        """How many stages to make."""
        return len(self.devices) if self.stages is None else self.stages

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Every item's place in the listed order."""
        return {item.name: index for index, item in enumerate(self.items)}

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Every wire's producer and consumer by their places."""
        return tuple((self.index[wire.producer], self.index[wire.consumer]) for wire in self.wires)

    @cached_property
    def joined(self) -> tuple[int | None, ...]:
        """For every item, the one behind which it stores nothing if it stands right before it in its stage.

        Both join, and nothing enters or leaves between them: one's only reader is the other's only input.
        """
        readers: list[set[int]] = [set() for _ in self.items]
        inputs: list[set[int]] = [set() for _ in self.items]
        for producer, consumer in self.edges:
            readers[producer].add(consumer)
            inputs[consumer].add(producer)
        found: list[int | None] = [None] * len(self.items)
        for index, item in enumerate(self.items):
            if item.joins and len(inputs[index]) == 1:
                (before,) = inputs[index]
                if self.items[before].joins and len(readers[before]) == 1:
                    found[index] = before
        return tuple(found)

    @property
    def limits(self) -> tuple[float, ...]:
        """Every device's bytes, infinite where there is no limit."""
        return tuple(
            float("inf") if device.memory_bytes is None else float(device.memory_bytes) for device in self.devices
        )


def _problems(task: PartitionProblem) -> Iterator[Problem]:
    seen: set[str] = set()
    for item in task.items:
        if item.name in seen:
            yield Problem(message=f"two items are named {shown(item.name)}", hint="name every item differently")
        seen.add(item.name)
        costs = (item.seconds, item.resident_bytes, item.buffer_bytes, item.version_bytes, item.working_bytes)
        if not all(isfinite(cost) and cost >= 0 for cost in costs):
            yield Problem(message=f"item {shown(item.name)} has costs {costs}", hint="costs are finite, at least 0")
    for wire in task.wires:
        strangers = [name for name in (wire.producer, wire.consumer) if name not in seen]
        if strangers:
            yield Problem(message=f"a wire names {shown(strangers[0])}, which is no item", hint="list it as an item")
        elif task.index[wire.producer] >= task.index[wire.consumer]:
            message = f"{shown(wire.consumer)} reads {shown(wire.producer)}, which is not listed before it"
            yield Problem(message=message, hint="list the items in topological order")
    for device in task.devices:
        if not (isfinite(device.speed) and device.speed > 0):
            message = f"device {shown(device.name)} has speed {device.speed}"
            yield Problem(message=message, hint="a speed is a finite number above 0")
    if not 1 <= len(task.devices) <= task.stage_count <= len(task.items):
        counts = f"{len(task.items)} items, {task.stage_count} stages and {len(task.devices)} devices"
        yield Problem(
            message=f"{counts} leave a stage or a device empty",
            hint="give at least one device, at least as many stages as devices, and no more stages than items",
        )
