"""Topological orders to cut: a chain has one, a graph with branches many.

An interval of a topological order reads only what stands before it, so any cut of an order into intervals gives stages
that form an acyclic graph; and any stages that do are intervals of some order. Only the orders that are not tried are
lost.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator

import networkx as nx

from petra_graph.compiler.partitioner.problem import PartitionProblem

Order = tuple[int, ...]
_RANDOM_ITEMS = 400
"""Up to this number of items, random orders are tried too; they then cost less than a second."""
_RANDOM_ORDERS = 6


def orders(problem: PartitionProblem) -> tuple[Order, ...]:
    """Return the orders to try, without repetition, the listed one first."""
    listed = tuple(range(len(problem.items)))
    if has_one_order(problem):
        return (listed,)
    return tuple(dict.fromkeys([listed, *_other_orders(problem)]))


def has_one_order(problem: PartitionProblem) -> bool:
    """Whether no other order is considered: the listed one is kept, or each item reads the one before it."""
    return problem.keeps_order or all(
        problem.graph.has_edge(index - 1, index) for index in range(1, len(problem.items))
    )


def _other_orders(problem: PartitionProblem) -> Iterator[Order]:
    graph = problem.graph
    reverse = graph.reverse(copy=False)
    listed = range(len(problem.items))
    to_end = _heaviest_paths(problem, reverse, reversed(listed))
    from_source = _heaviest_paths(problem, graph, listed)
    clock = iter(range(len(problem.items) ** 2 + 1))
    yield _order(graph, lambda _: next(clock))  # Breadth first.
    yield _order(graph, lambda _: -next(clock))  # Depth first.
    yield _order(graph, lambda index: -to_end[index])  # Critical path first.
    yield _order(reverse, lambda _: -next(clock))[::-1]  # Depth first from the end.
    yield _order(reverse, lambda index: -from_source[index])[::-1]  # Each item as late as possible.
    if len(problem.items) <= _RANDOM_ITEMS:
        draw = random.Random(0)  # noqa: S311 - nothing secret
        for _ in range(_RANDOM_ORDERS):
            yield _order(graph, lambda _: draw.random())


def _heaviest_paths(problem: PartitionProblem, graph: nx.DiGraph, order: Iterable[int]) -> dict[int, float]:
    """Return the work on the heaviest path that ends at each item."""
    found: dict[int, float] = {}
    for index in order:
        found[index] = problem.device_seconds[0][index] + max(
            (found[one] for one in graph.predecessors(index)), default=0.0
        )
    return found


def _order(graph: nx.DiGraph, rank: Callable[[int], float]) -> Order:
    """Return the topological order that takes the lowest ranked of the free items; ranks are taken as they get free."""
    return tuple(nx.lexicographical_topological_sort(graph, key=rank))
