"""What a process does, and what ended a run, as values that processes tell one another."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import attrs
from attrs import frozen

from petra_graph.program.schedule import order
from petra_graph.program.stage_program import StageProgram

_AROUND = 4
"""Operations before and after that are shown."""


@frozen(kw_only=True)
class OperationStatus:
    """What a process does at the moment, or waits for."""

    program: StageProgram
    operation: str
    """ "forward", "backward", "update" or "evaluation"."""
    micro_batch: int
    """Counted from the run's start; of an evaluation, its batches."""
    micro_batches: range
    """Of the epoch."""
    since: float
    """On this process's monotonic clock, in seconds."""
    channel: str | None = None
    """What it waits for; None: it computes."""
    waits_for: tuple[int, ...] = ()
    """Ranks that could let it go on."""

    @property
    def stage(self) -> str:
        """Name the stage."""
        return f"stage {self.program.index} ({', '.join(self.program.nodes)})"

    def __str__(self) -> str:
        """Say it in a few words."""
        what = "batch" if self.operation == "evaluation" else "micro-batch"
        text = f"{self.stage}, {self.operation} of {what} {self.micro_batch}"
        return text if self.channel is None else f"{text}, waiting on {self.channel}"

    def record(self) -> dict[str, Any]:
        """Return what a failure tells of it."""
        return {
            "stage": self.program.index,
            "nodes": list(self.program.nodes),
            "operation": self.operation,
            "micro_batch": self.micro_batch,
            "channel": self.channel,
            "schedule": self.schedule(),
        }

    def schedule(self) -> str:
        """Write the stage's operations around this one, which stands in brackets."""
        if self.operation == "evaluation":
            return f"evaluation of {len(self.micro_batches)} batches"
        program = self.program
        actions = order(program.depth, self.micro_batches, program.accumulation, program.flush)
        written: list[str] = []
        at = None
        for action in actions:
            if at is None and (action.verb, action.micro_batch) == (self.operation, self.micro_batch):
                at = len(written)
                written.append(f"[{action}]")
                written.extend(map(str, islice(actions, _AROUND)))
                break
            written.append(str(action))
        return " ".join(written[max(0, (at or 0) - _AROUND) :])


@frozen(kw_only=True)
class Failure:
    """The first thing that went wrong in a run, on whichever process."""

    rank: int
    """Where it went wrong."""
    problems: tuple[tuple[str, str], ...]
    """Messages and hints."""
    exit_code: int = 1
    lost: bool = False
    """The rank is no more, or does not answer."""
    where: dict[str, Any] | None = None
    """What the rank did, as `OperationStatus.record`; None: nothing of a stage."""
    traceback: str = ""
    asks_about: int | None = None
    """A micro-batch: every process is to say whether what its stages sent for it was finite."""

    def json(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return attrs.asdict(self)

    @classmethod
    def of(cls, told: dict[str, Any]) -> Failure:
        """Read it back."""
        problems = tuple((message, hint) for message, hint in told["problems"])
        return cls(**{**told, "problems": problems})


def stages_text(stages: Sequence[int]) -> str:
    """Name stages in a row: "stage 3", or "stages 3 to 5"."""
    if not stages:
        return "no stage"
    return f"stage {stages[0]}" if len(stages) == 1 else f"stages {stages[0]} to {stages[-1]}"
