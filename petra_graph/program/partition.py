"""Which nodes form which stage, and which device hosts it."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class Stage:
    """A set of nodes that share one delay and one optimizer step."""

    nodes: tuple[str, ...]
    """In topological order."""
    device: str
    distance: int
    """Longest path to the head's stage, counted in stages (the paper's J - j)."""


@frozen(kw_only=True)
class Partition:
    """All stages, from the source's to the head's, in topological order."""

    stages: tuple[Stage, ...]
