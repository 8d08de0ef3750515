"""Orders of operations that deadlock: the stages that wait for each other."""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx
from attrs import frozen

from petra_graph.errors import Problem, SpecError
from petra_graph.program.channels import ChannelKey
from petra_graph.program.schedule import Action


@frozen(kw_only=True)
class Wait:
    """One operation that cannot start."""

    stage: int
    action: Action
    on: int
    """The stage that has to act first."""
    channel: ChannelKey | None
    """The channel that lacks a message or room; None where the operation waits for its own stage or device."""
    capacity: int | None = None
    """The channel's, where it lacks room."""

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
    """No stage can go on; `waits` is the cycle of those that wait for one another."""

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
