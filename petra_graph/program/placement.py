"""Where a network runs: the nodes of every stage, its device, its process, the schedule."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve, frozen

from petra_graph.program.device_types import Device
from petra_graph.spec.model import KeepsByNode, Schedule


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


@frozen(kw_only=True)
class Placement(Partition):
    """Stages on devices: what the planner decides, and what programs and predictions follow from."""

    devices: tuple[Device, ...]
    """In the order of the pipeline, devices without a stage among them; each stage names one of them."""
    schedule: Schedule
    """The depth of every stage, or the schedule from which the depths follow."""
    kept: KeepsByNode | None = None
    """What every node keeps, where that was decided here; None: what the specification says."""
    by_cost: bool = False
    """Whether costs decided any of it, so that nothing less than a plan says why."""
    guarantee: str = ""
    """How good the stages are, for people; "" where nothing was cut or placed by cost."""
    notes: tuple[str, ...] = ()
    """What was decided otherwise than the specification asks, and why, for people."""
