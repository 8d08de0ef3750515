"""The true costs of stages on devices, however they were cut."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from petra_graph.compiler.partitioner.problem import PartitionProblem
from petra_graph.graph.node_graph import distances, stage_graph


@frozen(kw_only=True)
class StageCosts:
    """A stage on its device."""

    items: tuple[str, ...]
    """Names, in the problem's order."""
    device: int
    """Its position in the problem's devices."""
    distance: int
    """Longest path to the last stage, counted in stages."""
    seconds: float
    """Work of a micro-batch on that device, without messages."""
    resident_bytes: int
    buffer_bytes: int
    version_bytes: int
    working_bytes: int


@frozen(kw_only=True)
class CutCosts:
    """Stages on devices with their costs."""

    stages: tuple[StageCosts, ...]
    """In topological order."""
    device_seconds: tuple[float, ...]
    """Each device's tick, with its messages."""
    device_bytes: tuple[int, ...]
    channel_bytes: int
    """Between devices, for each micro-batch, both ways."""

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
        """The tick with one device a stage, each of the same kind as the stage's own, and free links."""
        return max(stage.seconds for stage in self.stages)


def cut_costs(problem: PartitionProblem, stages: Sequence[Sequence[int]], devices: Sequence[int]) -> CutCosts:
    """Return the costs of `stages`, lists of items' positions in topological order, on `devices`, one a stage."""
    distance = distances(stage_graph(problem.graph, stages))
    placed = tuple(
        _stage_costs(problem, sorted(items), device, distance[index])
        for index, (items, device) in enumerate(zip(stages, devices, strict=True), start=1)
    )
    host = {index: device for items, device in zip(stages, devices, strict=True) for index in items}
    traffic, buffers = _channel_costs(problem, host)
    seconds, total = [], []
    for device in range(len(problem.devices)):
        own = [stage for stage in placed if stage.device == device]
        work = sum(stage.seconds for stage in own)
        seconds.append(max(work, traffic[device] / problem.link_bytes_per_second))
        kept = sum(stage.resident_bytes + stage.buffer_bytes + stage.version_bytes for stage in own)
        total.append(kept + max((stage.working_bytes for stage in own), default=0) + buffers[device])
    return CutCosts(
        stages=placed,
        device_seconds=tuple(float(one) for one in seconds),
        device_bytes=tuple(total),
        channel_bytes=sum(traffic) // 2,
    )


def _stage_costs(problem: PartitionProblem, items: Sequence[int], device: int, distance: int) -> StageCosts:
    rule, own = problem.depth_rule, [problem.items[index] for index in items]
    # An item that joins the one before it in the stage stores nothing.
    stored = sum(
        problem.items[index].buffer_bytes
        for before, index in zip([None, *items], items, strict=False)
        if before is None or problem.joined[index] != before
    )
    return StageCosts(
        items=tuple(item.name for item in own),
        device=device,
        distance=distance,
        seconds=sum(item.seconds for item in own) / problem.devices[device].speed,
        resident_bytes=sum(item.resident_bytes for item in own),
        buffer_bytes=rule.depth(distance) * stored,
        version_bytes=rule.versions(distance) * sum(item.version_bytes for item in own),
        working_bytes=max(item.working_bytes for item in own),
    )


def _channel_costs(problem: PartitionProblem, host: dict[int, int]) -> tuple[list[int], list[int]]:
    """Return for each device the bytes of its messages, both ways, and the bytes of its channels' capacity."""
    traffic, buffers = ([0] * len(problem.devices) for _ in range(2))
    for edge, (producer, consumer) in zip(problem.edges, problem.ends, strict=True):
        sender, receiver = host[producer], host[consumer]
        if sender == receiver:
            continue
        for device in (sender, receiver):
            traffic[device] += edge.forward_bytes + edge.backward_bytes
        buffers[receiver] += problem.channel_capacity * edge.forward_bytes
        buffers[sender] += problem.channel_capacity * edge.backward_bytes
    return traffic, buffers
