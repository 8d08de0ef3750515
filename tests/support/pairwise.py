"""Fewer cases than a product: every pair of values that the product has occurs at least once, or every value.

Decision: no library. A product of methods and settings has forbidden combinations, and libraries for pairwise coverage
filter them while they build rows, which may leave out an allowed pair. This choice starts from the allowed cases, so
every pair of theirs is covered by construction, and the same cases always give the same choice.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from heapq import heapify, heapreplace
from itertools import combinations, product
from operator import itemgetter
from typing import Any, TypeVar

import pytest

Factors = Mapping[str, Hashable]
"""By factor, the value that a case has."""
Pair = tuple[tuple[str, Hashable], ...]
"""Or more values, or one."""
Case = TypeVar("Case")


def pairs(factors: Factors, together: int = 2) -> frozenset[Pair]:
    """Return all pairs of values, each value with the name of its factor."""
    return frozenset(combinations(sorted(factors.items(), key=itemgetter(0)), together))


def pairwise(cases: Sequence[Case], factors: Callable[[Case], Factors], together: int = 2) -> list[Case]:
    """Choose cases, in their order, that have every pair that occurs in `cases`.

    The choice is greedy: the next case is the first one with the most pairs that no chosen case has.

    Args:
        cases: all that are allowed.
        factors: of a case.
        together: how many values occur together; 1: every value occurs.
    """
    held = [pairs(factors(case), together) for case in cases]
    missing = set().union(*held)
    # How many missing pairs a case has only falls: the first case whose number still holds has the most.
    most = [(-len(of_case), index) for index, of_case in enumerate(held)]
    heapify(most)
    chosen: list[int] = []
    while missing:
        number, index = most[0]
        of_case = held[index] & missing
        heapreplace(most, (-len(of_case), index))
        if len(of_case) == -number:
            chosen.append(index)
            missing -= of_case
    return [cases[index] for index in sorted(chosen)]


def pairwise_product(**factors: Sequence[Hashable]) -> list[tuple[Hashable, ...]]:
    """Choose rows of a product in which every combination is allowed; values in the order of the factors."""
    rows = list(product(*factors.values()))
    return pairwise(rows, lambda row: dict(zip(factors, row, strict=True)))


def thinned(cases: Sequence[Case], usual: Iterable[Case]) -> list[Any]:
    """Return all cases as parameters of a test, of which those that are not usual are marked `thorough`.

    Args:
        cases: a tuple is the values of several arguments.
        usual: some of these objects.
    """
    kept = set(map(id, usual))
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)), marks=() if id(case) in kept else pytest.mark.thorough
        )
        for case in cases
    ]


def pairs_of(*values: Iterable[Hashable], together: int = 2) -> list[Any]:
    """Return the rows of a product as parameters of a test; those that no pair of values needs are marked `thorough`.

    Args:
        values: of each argument.
        together: as for `pairwise`; 1: every value occurs in the rows that are not marked.
    """
    rows = list(product(*values))
    return thinned(rows, pairwise(rows, lambda row: dict(zip(map(str, range(len(row))), row, strict=True)), together))
