"""Orders that would wait for ever, told by who waits for whom."""

from __future__ import annotations

from collections.abc import Sequence

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
    """The stage that would have to act first."""
    channel: ChannelKey | None
    """Where the message or the free slot should come from; None where it waits for its own stage or device."""
    slots: int | None = None
    """How many the channel has, where a free one is missing."""

    def __str__(self) -> str:
        doing = f"stage {self.stage} waits to {_PHRASES[self.action.verb]} {self.action.micro_batch}"
        if self.channel is None:
            return f"{doing} until stage {self.on} has gone on"
        what = f"message on wire {self.channel}" if self.slots is None else f"free slot on wire {self.channel}"
        who = "from" if self.slots is None else "to be freed by"
        places = "" if self.slots is None else f" ({self.slots} in all)"
        return f"{doing} for a {what}{places} {who} stage {self.on}"


_PHRASES = {
    "forward": "run the forward of micro-batch",
    "backward": "run the backward of micro-batch",
    "update": "update after micro-batch",
}


class Deadlock(SpecError):
    """No stage can go on; `waits` is the circle of those that wait for one another."""

    def __init__(self, waits: Sequence[Wait]) -> None:
        self.waits = tuple(waits)
        hint = "depths must not grow along an edge, and the last stage's is 1"
        if any(wait.slots is not None for wait in waits):
            hint = "give the wire more slots, or its ends depths that differ by less"
        message = "this order would wait for ever: " + "; ".join(map(str, waits))
        super().__init__(Problem(message=message, hint=hint, path=("method", "schedule")))


def circle(waits: Sequence[Wait]) -> tuple[Wait, ...]:
    """Return those waits that form a circle, beginning with the first stage in it; all where none does."""
    by_stage: dict[int, Wait] = {}
    for wait in waits:
        by_stage.setdefault(wait.stage, wait)
    for stage in sorted(by_stage):
        path: list[int] = []
        at = stage
        while at in by_stage and at not in path:
            path.append(at)
            at = by_stage[at].on
        if at in path:
            return tuple(by_stage[each] for each in path[path.index(at) :])
    return tuple(waits)
