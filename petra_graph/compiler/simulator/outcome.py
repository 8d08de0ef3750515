"""The outcome of a simulated run: every operation with its start and its end, or the stages that wait for each other.

Three stages under `1f1b` where a forward takes 1 second and a backward 2, one column a second:

    stage 1   F0 F1 F2 .  .  .  .  B0 -- F3 B1 -- .  B2 -- .  B3 --
    stage 2   .  F0 F1 .  .  B0 -- F2 B1 -- F3 B2 -- .  B3 -- .  .
    stage 3   .  .  F0 B0 -- F1 B1 -- F2 B2 -- F3 B3 -- .  .  .  .
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import networkx as nx
from attrs import frozen

from petra_graph.errors import Problem, SpecError
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
        return (event for event in self.events if event.stage == stage and event.verb == verb)

    @property
    def fill_seconds(self) -> float:
        """Until the head starts its first forward."""
        return next((event.start for event in self.of(self.head, "forward")), 0.0)

    @property
    def drain_seconds(self) -> float:
        """From the end of the head's last backward to the end of everything."""
        return self.seconds - max((event.end for event in self.of(self.head, "backward")), default=0.0)


@frozen(kw_only=True)
class Wait:
    """One operation that cannot start."""

    stage: int
    action: Action
    on: int
    """The stage that has to act first."""
    channel: ChannelKey | None
    """The channel without a message or room; None where the operation waits for its own stage or device."""
    capacity: int | None = None
    """The channel's, where it has no room."""

    def __str__(self) -> str:
        waiting = f"stage {self.stage} waits to {_PHRASES[self.action.verb]} {self.action.micro_batch}"
        if self.channel is None:
            return f"{waiting} until stage {self.on} has gone on"
        if self.capacity is None:
            return f"{waiting} for a message on channel {self.channel} from stage {self.on}"
        return (
            f"{waiting} for room on channel {self.channel} (capacity {self.capacity}), to be freed by stage {self.on}"
        )


_PHRASES = {
    "forward": "run the forward of micro-batch",
    "backward": "run the backward of micro-batch",
    "update": "update after micro-batch",
}


class Deadlock(SpecError):
    """Every stage waits; `waits` is the cycle of those that wait for one another."""

    def __init__(self, waits: Sequence[Wait]) -> None:
        self.waits = tuple(waits)
        hint = "depths must not grow along an edge, and the last stage's is 1"
        if any(wait.capacity is not None for wait in waits):
            hint = "give the channel more capacity, or its stages depths that differ by less"
        message = "this order would wait for ever: " + "; ".join(map(str, waits))
        super().__init__(Problem(message=message, hint=hint, path=("method", "schedule")))


def waiting_cycle(waits: Sequence[Wait]) -> tuple[Wait, ...]:
    """Return the waits that form a cycle of stages, each stage's first one counting; all where there is no cycle."""
    first = {wait.stage: wait for wait in reversed(waits)}
    try:
        cycle = nx.find_cycle(nx.DiGraph((wait.stage, wait.on) for wait in first.values()), sorted(first))
    except nx.NetworkXNoCycle:
        return tuple(waits)
    return tuple(first[stage] for stage, _ in cycle)
