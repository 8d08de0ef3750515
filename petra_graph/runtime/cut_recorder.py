"""How the state of all stages at a cut (`program.cut`) is taken while the pipeline keeps running.

a stage comes to its forward N      --->  a copy of what it holds (`executor.state`)
it receives a backward message that
was in flight before that forward   --->  a copy of the message; with the last one, the stage's copy is complete
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define

from petra_graph.executor.encoded import EncodedTensors
from petra_graph.executor.stage import StageExecutor
from petra_graph.executor.state import SavedTensors, capture
from petra_graph.program.channels import ChannelKey
from petra_graph.program.cut import Cut
from petra_graph.program.stage_program import StageProgram


@define(eq=False)
class _Passing:
    """A stage that has passed a cut, and waits for messages that were in flight there."""

    at: int
    saved: SavedTensors
    missing: int
    """Messages."""


class CutRecorder(ABC):
    """Copies what stages hold at cuts, and the messages in flight there, while the pipeline keeps running."""

    def __init__(self, programs: Sequence[StageProgram]) -> None:
        self._programs = programs
        self._awaited: dict[tuple[ChannelKey, int], list[_Passing]] = {}
        """By channel and micro-batch; one message may have been in flight at several cuts."""

    @abstractmethod
    def due(self, micro_batch: int) -> bool:
        """Whether there is a cut before this forward."""

    @abstractmethod
    def complete(self, at: int, saved: SavedTensors) -> None:
        """Take the copy of a stage at the cut before forward `at`, with the messages that were in flight to it."""

    def facts(self, executor: StageExecutor, cut: Cut) -> Mapping[str, Any]:
        """Return what else is to be kept of a stage at a cut, as JSON."""
        return {}

    def reached(self, executor: StageExecutor, cut: Cut) -> None:
        """Copy the state of a stage that has come to a cut; raise RunFailed if its optimizer's state cannot be copied."""
        program, saved = executor.program, capture(executor)
        saved.facts |= {**self.facts(executor, cut), "messages": []}
        missing = {
            (channel.key, micro_batch)
            for channel in program.channels
            if channel.key.direction == "backward" and channel.receiver == program.index
            for micro_batch in cut.in_flight(self._programs[channel.sender - 1], program)
        }
        passing = _Passing(cut.at, saved, len(missing))
        for one in missing:
            self._awaited.setdefault(one, []).append(passing)
        if not missing:
            self.complete(cut.at, saved)

    def received(self, key: ChannelKey, micro_batch: int, message: EncodedTensors) -> None:
        """Copy a message of a consumer if it was in flight at a cut, or several, that the stage has passed."""
        for passing in self._awaited.pop((key, micro_batch), ()):
            messages = passing.saved.facts["messages"]
            passing.saved.put_all(f"messages/{len(messages)}", message)
            messages.append([*key.edge, micro_batch])
            passing.missing -= 1
            if not passing.missing:
                self.complete(passing.at, passing.saved)
