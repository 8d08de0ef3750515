"""The timeline of a simulated run: every operation with its start and its end.

Three stages under `1f1b` where a forward takes 1 second and a backward 2, one column a second:

    stage 1   F0 F1 F2 .  .  .  .  B0 -- F3 B1 -- .  B2 -- .  B3 --
    stage 2   .  F0 F1 .  .  B0 -- F2 B1 -- F3 B2 -- .  B3 -- .  .
    stage 3   .  .  F0 B0 -- F1 B1 -- F2 B2 -- F3 B3 -- .  .  .  .
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from attrs import frozen

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


@frozen(kw_only=True)
class Timeline:
    """A simulated run from its start to its drain."""

    head: int
    """Index of the stage with the loss."""
    events: tuple[Event, ...]
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
