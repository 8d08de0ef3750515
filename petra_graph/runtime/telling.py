"""What a process says of itself while it trains or evaluates: the lookout passes it on, and a failure repeats it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import attrs
from attrs import define

from petra_graph.program.lanes import Lane
from petra_graph.program.schedule import Action
from petra_graph.runtime.failure import Doing
from petra_graph.runtime.links import Links
from petra_graph.runtime.lookout import Lookout
from petra_graph.runtime.turns import Turn


@define
class Telling:
    """Says what this process's stages do, and what they wait for."""

    lookout: Lookout
    links: Links
    rank: int
    micro_batches: range = range(0)
    """Between two drains, or an evaluation's batches."""
    evaluates: bool = False

    def works(self, turn: Turn, action: Action) -> str:
        """Say that a stage begins an operation; return its name."""
        self.lookout.doing = doing = self._doing(turn, action)
        unit = "batch" if self.evaluates else "micro-batch"
        return f"{doing.operation} of {unit} {action.micro_batch}"

    def waits(self, turn: Turn, action: Action, what: str, ranks: Iterable[int]) -> None:
        """Say what a stage waits for, who could let it go on, and that it has waited all the time if it has."""
        doing, before = self._doing(turn, action), self.lookout.doing
        if before is not None and before.lane == what and before.micro_batch == doing.micro_batch:
            doing = attrs.evolve(doing, since=before.since)
        others = tuple(rank for rank in ranks if rank != self.rank)
        self.lookout.doing = attrs.evolve(doing, lane=what, waits_for=others)

    def waits_for_messages(self, awaited: Sequence[tuple[Turn, Action, Sequence[Lane]]]) -> None:
        """Say that each of some stages waits on lanes: of one that waits for another process, if there is one."""
        outside = [[lane for lane in lanes if self.links.peer(lane, self.rank) != self.rank] for _, _, lanes in awaited]
        at = max(range(len(awaited)), key=lambda at: (bool(outside[at]), at))
        turn, action, lanes = awaited[at]
        peers = sorted({self.links.peer(lane, self.rank) for lanes in outside for lane in lanes})
        self.waits(turn, action, ", ".join(map(str, outside[at] or lanes)), peers)

    def stops(self) -> None:
        """Say that no stage does anything."""
        self.lookout.doing = None

    def _doing(self, turn: Turn, action: Action) -> Doing:
        return Doing(
            program=turn.executor.program,
            operation="evaluation" if self.evaluates else action.verb,
            micro_batch=action.micro_batch,
            micro_batches=self.micro_batches,
            since=time.monotonic(),
        )
