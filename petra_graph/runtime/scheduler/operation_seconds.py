"""The host's seconds that the operations of each stage took.

An operation's seconds hold all that the process did for it: reading samples, computing, sending, recording, and copying state
where a checkpoint is due. On a CUDA device the host only queues work, so that its seconds say nothing of the device's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import define, field


@define
class OperationSeconds:
    """Counts and sums by stage and kind of operation."""

    _sums: dict[tuple[int, str], list[float]] = field(factory=dict, init=False)

    def tally(self, stage: int, operation: str) -> list[float]:
        """Return what the scheduler adds each operation of a stage to: their number and their seconds; stages count from 1."""
        return self._sums.setdefault((stage, operation), [0, 0.0])

    def of_stage(self, stage: int) -> Mapping[str, Any]:
        """Return a stage's operations as JSON: by kind, how many there were and their seconds."""
        return {
            operation: {"operations": count, "seconds": round(total, 6)}
            for (index, operation), (count, total) in self._sums.items()
            if index == stage and count
        }
