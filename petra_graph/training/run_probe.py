"""What observes some micro-batches of a training, because the table `[probe]` asks for it: an object of another distribution.

It is made as `RunProbe(spec.probe)` of the joint `probe`. A run without the table has none, and asks for none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from petra_graph.errors import Problem
from petra_graph.executor.stage_executor import StageExecutor

Record = Callable[[int, Mapping[str, float]], None]
"""Records metrics of a micro-batch, which is counted from the run's start; called between two operations."""
Begin = Callable[[range, int | None, int], None]
"""Called when the stages begin, with the micro-batches between two drains, the cut at which they begin (None: the drain), and `filled` of
`program.schedule.order`."""


class RunProbe(Protocol):
    def problems(self, micro_batches: int | None, processes: int) -> Iterable[Problem]:
        """Yield what is wrong with the table.

        Args:
            micro_batches: of an epoch; None: not known.
            processes: how many share the stages.
        """

    def chosen(self, micro_batches: range) -> Sequence[int]:
        """Return the micro-batches of an epoch that are observed; no checkpoint is cut while one of them is on its way."""

    def observe(self, stages: Sequence[StageExecutor], record: Record, warn: Callable[[str], None]) -> Begin:
        """Begin to observe all stages of the network."""
