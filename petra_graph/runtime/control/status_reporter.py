"""What a process says of itself while it trains or evaluates: the watchdog passes it on, and a failure repeats it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import attrs
from attrs import define

from petra_graph.program.channels import ChannelKey
from petra_graph.program.schedule import Action
from petra_graph.runtime.control.failure import OperationStatus
from petra_graph.runtime.control.watchdog import Watchdog
from petra_graph.runtime.scheduler.stage_cursor import StageCursor
from petra_graph.runtime.transport.process_channels import ProcessChannels


@define
class StatusReporter:
    """Says what this process's stages do, and what they wait for."""

    watchdog: Watchdog
    links: ProcessChannels
    rank: int
    micro_batches: range = range(0)
    """Between two drains, or an evaluation's batches."""
    evaluates: bool = False

    def works(self, turn: StageCursor, action: Action) -> str:
        """Say that a stage begins an operation; return its name."""
        self.watchdog.status = doing = self._doing(turn, action)
        unit = "batch" if self.evaluates else "micro-batch"
        return f"{doing.operation} of {unit} {action.micro_batch}"

    def waits(self, turn: StageCursor, action: Action, what: str, ranks: Iterable[int]) -> None:
        """Say what a stage waits for, who could let it go on, and that it has waited all the time if it has."""
        doing, before = self._doing(turn, action), self.watchdog.status
        if before is not None and before.channel == what and before.micro_batch == doing.micro_batch:
            doing = attrs.evolve(doing, since=before.since)
        others = tuple(rank for rank in ranks if rank != self.rank)
        self.watchdog.status = attrs.evolve(doing, channel=what, waits_for=others)

    def waits_for_messages(self, awaited: Sequence[tuple[StageCursor, Action, Sequence[ChannelKey]]]) -> None:
        """Say that each of some stages waits on channels: of one that waits for another process, if there is one."""
        outside = [
            [channel for channel in channels if self.links.peer(channel, self.rank) != self.rank]
            for _, _, channels in awaited
        ]
        at = max(range(len(awaited)), key=lambda at: (bool(outside[at]), at))
        turn, action, channels = awaited[at]
        peers = sorted({self.links.peer(channel, self.rank) for channels in outside for channel in channels})
        self.waits(turn, action, ", ".join(map(str, outside[at] or channels)), peers)

    def stops(self) -> None:
        """Say that no stage does anything."""
        self.watchdog.status = None

    def _doing(self, turn: StageCursor, action: Action) -> OperationStatus:
        return OperationStatus(
            program=turn.executor.program,
            operation="evaluation" if self.evaluates else action.verb,
            micro_batch=action.micro_batch,
            micro_batches=self.micro_batches,
            since=time.monotonic(),
        )
