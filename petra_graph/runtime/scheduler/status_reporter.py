"""What a process reports of its operations: the present one or its wait, which the watchdog publishes, and the seconds of all.

An operation's seconds hold all that the process did for it: reading samples, computing, sending, recording, and copying state
where a checkpoint is due. On a CUDA device the host only queues work, so that its seconds say nothing of the device's.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
from attrs import define, field

from petra_graph.program.channels import ChannelKey
from petra_graph.program.schedule import Action
from petra_graph.runtime.control.failure import OperationStatus
from petra_graph.runtime.control.supervisor import Supervisor
from petra_graph.runtime.scheduler.stage_at_work import StageAtWork
from petra_graph.runtime.transport.process_channels import ProcessChannels


@define
class StatusReporter:
    """Sets the status of this process."""

    supervisor: Supervisor
    channels: ProcessChannels
    rank: int
    micro_batches: range = range(0)
    """Between two drains, or an evaluation's batches."""
    filled: int = 0
    """The forward before which the pipeline filled again."""
    evaluates: bool = False

    def begin(self, micro_batches: range, filled: int = 0, *, evaluates: bool = False) -> None:
        """Report what follows as training on these micro-batches, or as an evaluation of these batches."""
        self.micro_batches, self.filled, self.evaluates = micro_batches, filled, evaluates

    def works(self, stage: StageAtWork, action: Action) -> None:
        """Report that a stage begins an operation."""
        self.supervisor.status = self._status(stage, action)

    def task(self, stage: StageAtWork, action: Action) -> str:
        """Return an operation as people read it."""
        return self._status(stage, action).task

    def waits(self, stage: StageAtWork, action: Action, awaited: str, ranks: Iterable[int]) -> None:
        """Report that a stage waits, and since when.

        Args:
            ranks: the processes that could end its wait.
        """
        status, before = self._status(stage, action), self.supervisor.status
        if before is not None and before.channel == awaited and before.micro_batch == status.micro_batch:
            status = attrs.evolve(status, since=before.since)
        others = tuple(rank for rank in ranks if rank != self.rank)
        self.supervisor.status = attrs.evolve(status, channel=awaited, waits_for=others)

    def waits_for_messages(self, awaited: Sequence[tuple[StageAtWork, Action, Sequence[ChannelKey]]]) -> None:
        """Report that each of some stages waits on channels: of one that waits for another process, if there is one."""
        outside = [[key for key in keys if self._peer(key) != self.rank] for *_, keys in awaited]
        at = max(range(len(awaited)), key=lambda at: (bool(outside[at]), at))
        stage, action, keys = awaited[at]
        peers = sorted({self._peer(key) for keys in outside for key in keys})
        self.waits(stage, action, ", ".join(map(str, outside[at] or keys)), peers)

    def ends(self) -> None:
        """Report that no stage does anything."""
        self.supervisor.status, self.evaluates = None, False

    def _peer(self, key: ChannelKey) -> int:
        return self.channels.peer(key, self.rank)

    def _status(self, stage: StageAtWork, action: Action) -> OperationStatus:
        return OperationStatus(
            program=stage.executor.program,
            operation="evaluation" if self.evaluates else action.verb,
            micro_batch=action.micro_batch,
            micro_batches=self.micro_batches,
            filled=self.filled,
            since=time.monotonic(),
        )


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
