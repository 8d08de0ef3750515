"""The status of a process, and the failure of a run, as values that processes exchange."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from attrs import define, frozen

from petra_graph.program.stage_program import StageProgram


@define(kw_only=True, eq=False)
class OperationStatus:
    """The present operation of a process, or its wait."""

    program: StageProgram
    operation: str
    """A verb of `program.schedule`, or "evaluation"."""
    micro_batch: int
    """Counted from the run's start; of an evaluation, its batches."""
    since: float
    """On this process's monotonic clock, in seconds."""
    channel: str | None = None
    """The channels or event that it waits for; None: it computes."""

    @property
    def stage(self) -> str:
        return f"stage {self.program.index} ({', '.join(self.program.nodes)})"

    @property
    def task(self) -> str:
        """The operation and its micro-batch or batch, as people read them."""
        what = "batch" if self.operation == "evaluation" else "micro-batch"
        return f"{self.operation} of {what} {self.micro_batch}"

    def __str__(self) -> str:
        """Write stage, operation, micro-batch and wait."""
        text = f"{self.stage}, {self.task}"
        return text if self.channel is None else f"{text}, waiting on {self.channel}"

    def record(self) -> dict[str, Any]:
        return {
            "stage": self.program.index,
            "nodes": list(self.program.nodes),
            "operation": self.operation,
            "micro_batch": self.micro_batch,
            "channel": self.channel,
        }


@frozen(kw_only=True)
class Failure:
    """The first failure of a run, on any process."""

    rank: int
    """The process that failed."""
    problems: tuple[tuple[str, str], ...]
    """Messages and hints."""
    exit_code: int = 1
    lost: bool = False
    """The process has died, or does not answer."""
    where: dict[str, Any] | None = None
    """The status of the rank, as `OperationStatus.record`; None: it ran no stage."""
    traceback: str = ""

    def json(self) -> dict[str, Any]:
        return attrs.asdict(self)

    @classmethod
    def of(cls, published: dict[str, Any]) -> Failure:
        problems = tuple((message, hint) for message, hint in published["problems"])
        return cls(**{**published, "problems": problems})


def stages_text(stages: Sequence[int]) -> str:
    """Name consecutive stages: "stage 3", or "stages 3 to 5"."""
    if not stages:
        return "no stage"
    return f"stage {stages[0]}" if len(stages) == 1 else f"stages {stages[0]} to {stages[-1]}"
