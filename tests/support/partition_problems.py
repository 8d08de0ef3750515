"""Random tables of costs, and every cut of a small one.

Numbers are small integers and powers of two, so that sums are exact in any order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from math import inf
from typing import Any

from hypothesis import strategies as st

from petra_graph.compiler.partitioner.interval_costs import CutCosts, cut_costs
from petra_graph.compiler.partitioner.problem import DepthRule, DeviceBudget, Item, ItemEdge, PartitionProblem

SCHEDULES = ("lockstep", "1f1b", "sequential", "fill-drain")


def chain(seconds: Sequence[float], devices: int | Sequence[DeviceBudget], **problem: Any) -> PartitionProblem:
    """A chain of items with only work."""
    items = [Item(name=f"n{index}", seconds=value) for index, value in enumerate(seconds)]
    edges = [ItemEdge(producer=a.name, consumer=b.name) for a, b in pairwise(items)]
    hosts = plain_devices(devices) if isinstance(devices, int) else devices
    usual: dict[str, Any] = {"items": items, "edges": edges, "devices": hosts}
    return PartitionProblem(**(usual | problem))


def plain_devices(count: int) -> tuple[DeviceBudget, ...]:
    return tuple(DeviceBudget(name=f"d{index}") for index in range(count))


@st.composite
def problems(
    draw: st.DrawFn, *, most: int = 10, branches: bool = False, limits: bool = True, stages: bool = True
) -> PartitionProblem:
    """A chain, perhaps with skips, or any graph with one end."""
    count = draw(st.integers(1, most))
    small = st.integers(0, 9)
    items = [
        Item(
            name=f"n{index}",
            seconds=draw(small),
            resident_bytes=draw(small),
            buffer_bytes=draw(small),
            version_bytes=draw(st.integers(0, 3)),
            working_bytes=draw(small),
            joins=draw(st.booleans()),
        )
        for index in range(count)
    ]
    ends = {(index, index + 1) for index in range(count - 1) if not branches or draw(st.booleans())}
    ends |= {tuple(sorted(pair)) for pair in draw(st.sets(st.tuples(*[st.integers(0, count - 1)] * 2), max_size=4))}
    ends = {(a, b) for a, b in ends if a < b}
    ends |= {(index, count - 1) for index in range(count - 1) if all(a != index for a, _ in ends)}
    edges = [
        ItemEdge(producer=f"n{a}", consumer=f"n{b}", forward_bytes=draw(small), backward_bytes=draw(small))
        for a, b in sorted(ends)
    ]
    hosts = draw(st.integers(1, min(count, 4)))
    limit = st.none() | st.integers(5, 150) if limits else st.none()
    return PartitionProblem(
        items=items,
        edges=edges,
        devices=[
            DeviceBudget(name=f"d{index}", speed=draw(st.sampled_from([1.0, 1.0, 2.0, 4.0])), memory_bytes=draw(limit))
            for index in range(hosts)
        ],
        stages=draw(st.none() | st.integers(hosts, min(count, hosts + 3))) if stages else None,
        objective=draw(st.sampled_from(["balanced", "memory"])),
        link_bytes_per_second=draw(st.sampled_from([inf, 1.0, 4.0])),
        channel_capacity=draw(st.integers(0, 2)),
        depth_rule=DepthRule(schedule=draw(st.sampled_from(SCHEDULES)), accumulation=draw(st.integers(1, 3))),
    )


def all_cuts(problem: PartitionProblem, order: Sequence[int] | None = None) -> Iterator[CutCosts]:
    """Every contiguous cut of an order, on every choice of devices, that keeps the limits."""
    count = len(problem.items)
    order = range(count) if order is None else order
    for cuts in combinations(range(1, count), problem.stage_count - 1):
        stages = [order[a:b] for a, b in pairwise([0, *cuts, count])]
        for changes in combinations(range(1, problem.stage_count), len(problem.devices) - 1):
            devices = [sum(change <= stage for change in changes) for stage in range(problem.stage_count)]
            costs = cut_costs(problem, stages, devices)
            if all(used <= limit for used, limit in zip(costs.device_bytes, problem.limits, strict=True)):
                yield costs


def all_orders(problem: PartitionProblem) -> Iterator[tuple[int, ...]]:
    """Every topological order."""
    inputs = {index: {a for a, b in problem.ends if b == index} for index in range(len(problem.items))}

    def rest(done: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(done) == len(inputs):
            yield done
        for index, needed in inputs.items():
            if index not in done and needed <= set(done):
                yield from rest((*done, index))

    return rest(())
