"""What stages on devices really cost, whoever cut them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from attrs import frozen

from petra_graph.compiler.partitioner.problem import PartitionProblem


@frozen(kw_only=True)
class Placed:
    """A stage on its device."""

    items: tuple[str, ...]
    """Names, in the task's order."""
    device: int
    """Its place in the task's devices."""
    distance: int
    """Longest path to the last stage, counted in stages."""
    depth: int
    staleness: int
    """In micro-batches."""
    seconds: float
    """Work of a micro-batch on that device, without wires."""
    resident_bytes: int
    buffer_bytes: int
    version_bytes: int
    working_bytes: int


@frozen(kw_only=True)
class Costs:
    """Stages on devices, and what counts of them."""

    stages: tuple[Placed, ...]
    """In topological order."""
    device_seconds: tuple[float, ...]
    """Every device's tick, its wires included."""
    device_bytes: tuple[int, ...]
    channel_bytes: int
    """What crosses between devices for every micro-batch, both ways."""

    @property
    def tick_seconds(self) -> float:
        """The slowest device's."""
        return max(self.device_seconds)

    @property
    def peak_bytes(self) -> int:
        """The fullest device's."""
        return max(self.device_bytes)

    @property
    def slowest_stage_seconds(self) -> float:
        """What the tick would be, but for wires, with a device of its kind for each stage."""
        return max(stage.seconds for stage in self.stages)


def evaluate(task: PartitionProblem, stages: Sequence[Sequence[int]], devices: Sequence[int]) -> Costs:
    """Return what `stages`, lists of items' places in topological order, cost on `devices`, one for each stage."""
    place = {index: stage for stage, items in enumerate(stages) for index in items}
    distances = _distances(task, place, len(stages))
    placed = tuple(
        _placed(task, sorted(items), device, distance)
        for items, device, distance in zip(stages, devices, distances, strict=True)
    )
    messages, wires, slots = _wires(task, {index: devices[stage] for index, stage in place.items()})
    seconds, total = [], []
    for device in range(len(task.devices)):
        own = [stage for stage in placed if stage.device == device]
        seconds.append(
            task.link.tick(
                sum(stage.seconds for stage in own), task.link.seconds(float(messages[device]), float(wires[device]))
            )
        )
        kept = sum(stage.resident_bytes + stage.buffer_bytes + stage.version_bytes for stage in own)
        total.append(kept + max((stage.working_bytes for stage in own), default=0) + slots[device])
    return Costs(
        stages=placed,
        device_seconds=tuple(float(one) for one in seconds),
        device_bytes=tuple(total),
        channel_bytes=sum(wires) // 2,
    )


def _placed(task: PartitionProblem, items: Sequence[int], device: int, distance: int) -> Placed:
    ahead, own = task.ahead, [task.items[index] for index in items]
    depth = ahead.depth(distance)
    return Placed(
        items=tuple(item.name for item in own),
        device=device,
        distance=distance,
        depth=depth,
        staleness=ahead.staleness(distance),
        seconds=sum(item.seconds for item in own) / task.devices[device].speed,
        resident_bytes=sum(item.resident_bytes for item in own),
        buffer_bytes=depth * sum(task.items[index].buffer_bytes for index in _storing(task, items)),
        version_bytes=ahead.versions(distance) * sum(item.version_bytes for item in own),
        working_bytes=max(item.working_bytes for item in own),
    )


def _storing(task: PartitionProblem, items: Sequence[int]) -> Iterator[int]:
    """Yield the items that store something: those that do not join the one before them in the stage."""
    for before, index in pairwise([None, *items]):
        assert index is not None
        if before is None or task.joined[index] != before:
            yield index


def _distances(task: PartitionProblem, place: dict[int, int], count: int) -> list[int]:
    readers: list[set[int]] = [set() for _ in range(count)]
    for producer, consumer in task.edges:
        if place[producer] != place[consumer]:
            readers[place[producer]].add(place[consumer])
    distances = [0] * count
    for stage in reversed(range(count)):
        distances[stage] = max((1 + distances[reader] for reader in readers[stage]), default=0)
    return distances


def _wires(task: PartitionProblem, host: dict[int, int]) -> tuple[list[int], list[int], list[int]]:
    """Return for every device its messages, its bytes both ways, and the bytes of its slots."""
    messages, both, slots = ([0] * len(task.devices) for _ in range(3))
    for wire, (producer, consumer) in zip(task.wires, task.edges, strict=True):
        sender, receiver = host[producer], host[consumer]
        if sender == receiver:
            continue
        for device in (sender, receiver):
            messages[device] += 2
            both[device] += wire.forward_bytes + wire.backward_bytes
        slots[receiver] += task.link.slots * wire.forward_bytes
        slots[sender] += task.link.slots * wire.backward_bytes
    return messages, both, slots
