"""Runs of neighbours in a sequence, which a view writes or draws as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def runs(items: Iterable[T], joins: Callable[[T, T], bool]) -> list[list[T]]:
    """Split items into runs; `joins` says of an item and the next whether the next continues the run."""
    found: list[list[T]] = []
    for item in items:
        if found and joins(found[-1][-1], item):
            found[-1].append(item)
        else:
            found.append([item])
    return found
