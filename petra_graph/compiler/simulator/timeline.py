"""What happened when: every operation and every transfer, as values.

Drawn with `Timeline.lines`, three stages under `1f1b` where a forward is 1 and a backward 2, one column a second:

    stage 1   F0 F1 F2 .  .  .  .  B0 -- F3 B1 -- .  B2 -- .  B3 --
    stage 2   .  F0 F1 .  .  B0 -- F2 B1 -- F3 B2 -- .  B3 -- .  .
    stage 3   .  .  F0 B0 -- F1 B1 -- F2 B2 -- F3 B3 -- .  .  .  .
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from attrs import frozen

from petra_graph.program.channels import ChannelKey
from petra_graph.program.schedule import Action, Verb


class Event(NamedTuple):
    """One operation of a stage."""

    stage: int
    device: str
    verb: Verb
    micro_batch: int
    start: float
    """Seconds."""
    end: float
    """Seconds."""

    @property
    def action(self) -> Action:
        """The operation as the stage's order writes it."""
        return Action(self.verb, self.micro_batch)


class Transfer(NamedTuple):
    """One message between two devices."""

    channel: ChannelKey
    sender: str
    """Device."""
    receiver: str
    micro_batch: int
    start: float
    """Seconds, when it enters the link."""
    end: float
    """Seconds, when it has arrived."""


@frozen(kw_only=True)
class Timeline:
    """A simulated run from its start to its drain."""

    micro_batches: int
    head: int
    """Index of the stage with the loss."""
    events: tuple[Event, ...]
    """In the order of their starts."""
    transfers: tuple[Transfer, ...]
    """In the order of their starts."""

    @property
    def seconds(self) -> float:
        """From the start until the last operation has ended."""
        return max((event.end for event in self.events), default=0.0)

    def of(self, stage: int, verb: Verb) -> Iterator[Event]:
        """Yield a stage's operations of one kind, in their order."""
        return (event for event in self.events if event.stage == stage and event.verb == verb)

    @property
    def fill_seconds(self) -> float:
        """Until the head starts its first forward."""
        return next((event.start for event in self.of(self.head, "forward")), 0.0)

    @property
    def drain_seconds(self) -> float:
        """From the end of the head's last backward to the end of everything."""
        return self.seconds - max((event.end for event in self.of(self.head, "backward")), default=0.0)

    def busy_seconds(self) -> Mapping[str, float]:
        """Return for each device how long something runs there."""
        until: dict[str, float] = {}
        busy: dict[str, float] = {}
        for event in self.events:
            start = max(event.start, until.get(event.device, 0.0))
            busy[event.device] = busy.get(event.device, 0.0) + max(0.0, event.end - start)
            until[event.device] = max(event.end, until.get(event.device, 0.0))
        return busy

    def lines(self, unit_seconds: float, until_seconds: float | None = None) -> Iterator[str]:
        """Yield a line a stage, as the module's docstring draws it; two where forwards and backwards overlap.

        Operations that take less than half a unit are left out.

        Args:
            unit_seconds: what one column stands for.
            until_seconds: where the drawing ends; default: with the run.
        """
        columns = round((until_seconds or self.seconds) / unit_seconds)
        width = max((len(str(event.action)) for event in self.events), default=1) + 1
        stages = sorted({event.stage for event in self.events})
        for stage in stages:
            title = f"stage {stage:<{len(str(stages[-1]))}}"
            for row in _rows([event for event in self.events if event.stage == stage]):
                cells = ["."] * columns
                for event in row:
                    first, end = round(event.start / unit_seconds), round(event.end / unit_seconds)
                    drawn = [str(event.action), *["--"] * (end - first - 1)] if end > first else []
                    cells[first:end] = drawn[: max(0, columns - first)]
                yield f"{title}   " + "".join(f"{cell:<{width}}" for cell in cells).rstrip()
                title = " " * len(title)


def _rows(events: Sequence[Event]) -> tuple[Sequence[Event], ...]:
    """Return a stage's operations; forwards apart from the others, where some run at the same time."""
    if all(before.end <= after.start for before, after in pairwise(events)):
        return (events,)
    forwards = [event for event in events if event.verb == "forward"]
    return forwards, [event for event in events if event.verb != "forward"]
