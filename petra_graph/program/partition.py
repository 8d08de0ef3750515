"""Which nodes form which stage, and which device and process host it."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve, frozen


@frozen(kw_only=True)
class Stage:
    """A set of nodes that share one delay and one optimizer step."""

    nodes: tuple[str, ...]
    """In topological order."""
    device: str
    distance: int
    """Longest path to the head's stage, counted in stages (the paper's J - j)."""
    rank: int = 0
    """The process that hosts the stage, counted within one replica."""


@frozen(kw_only=True)
class Partition:
    """All stages, from the source's to the head's, in topological order."""

    stages: tuple[Stage, ...]

    def spread_over(self, devices: Sequence[str]) -> Partition:
        """Return the same stages spread over `devices` in order, each device with as many as another or one more."""
        count = len(self.stages)
        return Partition(
            stages=tuple(
                evolve(stage, device=devices[index * len(devices) // count]) for index, stage in enumerate(self.stages)
            )
        )
