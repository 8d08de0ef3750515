"""Topological orders to cut: a chain has one, a graph with branches many.

An interval of a topological order reads only what stands before it, so any cut of an order into intervals gives stages
that form an acyclic graph; and any stages that do are intervals of some order. What is lost is the orders not tried.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator, Sequence

from petra_graph.compiler.partitioner.problem import PartitionProblem

Order = tuple[int, ...]
_RANDOM_ITEMS = 400
"""Up to so many items, random orders are tried too; they then cost less than a second."""
_RANDOM_ORDERS = 6


def orders(task: PartitionProblem) -> tuple[Order, ...]:
    """Return the orders to try, without repetition, the listed one first."""
    listed = tuple(range(len(task.items)))
    if has_one_order(task):
        return (listed,)
    return tuple(dict.fromkeys([listed, *_others(task)]))


def has_one_order(task: PartitionProblem) -> bool:
    """Whether no other order is to be considered: the listed one is kept, or every item reads the one before it."""
    if task.keeps_order:
        return True
    linked = {consumer for producer, consumer in task.edges if producer + 1 == consumer}
    return len(linked) == len(task.items) - 1


def _others(task: PartitionProblem) -> Iterator[Order]:
    count = len(task.items)
    clock = iter(range(count * count + 1))
    readers: list[list[int]] = [[] for _ in range(count)]
    inputs: list[list[int]] = [[] for _ in range(count)]
    for producer, consumer in task.edges:
        readers[producer].append(consumer)
        inputs[consumer].append(producer)
    below = [0.0] * count  # Work on the heaviest way to an end.
    for index in reversed(range(count)):
        below[index] = task.items[index].seconds + max((below[reader] for reader in readers[index]), default=0.0)
    above = [0.0] * count  # Work on the heaviest way from a source.
    for index in range(count):
        above[index] = task.items[index].seconds + max((above[one] for one in inputs[index]), default=0.0)
    yield _order(inputs, readers, lambda _: next(clock))  # Breadth first.
    yield _order(inputs, readers, lambda _: -next(clock))  # Depth first.
    yield _order(inputs, readers, lambda index: -below[index])  # Critical path first.
    yield _order(readers, inputs, lambda _: -next(clock))[::-1]  # Depth first from the end.
    yield _order(readers, inputs, lambda index: -above[index])[::-1]  # Everything as late as it can be.
    if count <= _RANDOM_ITEMS:
        draw = random.Random(0)  # noqa: S311 - nothing secret
        for _ in range(_RANDOM_ORDERS):
            yield _order(inputs, readers, lambda _: draw.random())


def _order(inputs: Sequence[Sequence[int]], readers: Sequence[Sequence[int]], rank: Callable[[int], float]) -> Order:
    """Return the topological order that takes, of the items whose inputs are there, the lowest ranked."""
    missing = [len(set(names)) for names in inputs]
    ready = [(rank(index), index) for index, count in enumerate(missing) if count == 0]
    heapq.heapify(ready)
    found: list[int] = []
    while ready:
        _, index = heapq.heappop(ready)
        found.append(index)
        for reader in dict.fromkeys(readers[index]):
            missing[reader] -= 1
            if missing[reader] == 0:
                heapq.heappush(ready, (rank(reader), reader))
    return tuple(found)
