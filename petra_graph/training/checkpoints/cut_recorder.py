"""A stage's state at a cut with the messages that are in flight there, while the pipeline keeps running; and back (`program.cut`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import define

from petra_graph.executor.encoded_tensors import EncodedTensors
from petra_graph.executor.stage_executor import StageExecutor
from petra_graph.executor.stage_state import SavedTensors, capture, restore
from petra_graph.program.channels import ChannelKey, Edge
from petra_graph.program.cut import Cut
from petra_graph.program.stage_program import StageProgram
from petra_graph.runtime.scheduler.scheduler import Scheduler


@define(kw_only=True)
class _Passing:
    """A stage that has passed a cut, and waits for messages that were in flight there."""

    at: int
    saved: SavedTensors
    missing: set[tuple[ChannelKey, int]]
    """Channels and micro-batches."""


class CutRecorder:
    """Copies what stages hold at cuts."""

    def __init__(self, programs: Sequence[StageProgram], complete: Callable[[int, SavedTensors], None]) -> None:
        """Begin.

        Args:
            complete: called with the forward behind a cut and the copy of a stage, when its messages are in it.
        """
        self._programs, self._complete = programs, complete
        self._passing: dict[int, list[_Passing]] = {}
        """By stage, in the order of cuts."""

    def reached(self, executor: StageExecutor, cut: Cut, facts: Mapping[str, Any]) -> None:
        """Copy the state of a stage at a cut.

        Args:
            facts: more that belongs to it, as JSON.

        Raises:
            RunFailed: its optimizer's state cannot be copied.
        """
        program, saved = executor.program, capture(executor)
        saved.facts |= {**facts, "messages": []}
        missing = {
            (channel.key, micro_batch)
            for channel in program.channels
            if channel.key.direction == "backward" and channel.receiver == program.index
            for micro_batch in cut.in_flight(self._programs[channel.sender - 1], program)
        }
        if missing:
            passing = _Passing(at=cut.at, saved=saved, missing=missing)
            self._passing.setdefault(program.index, []).append(passing)
        else:
            self._complete(cut.at, saved)

    def awaits_messages(self, stage: int) -> bool:
        """Whether messages were in flight at a cut that the stage has passed, and have not come yet."""
        return bool(self._passing.get(stage))

    def received(self, stage: int, key: ChannelKey, micro_batch: int, message: EncodedTensors) -> None:
        """Copy a message that was in flight at a cut which the stage has passed."""
        for passing in self._passing.get(stage, ()):
            if (key, micro_batch) not in passing.missing:
                continue
            messages = passing.saved.facts["messages"]
            passing.saved.put_all(f"messages/{len(messages)}", message)
            messages.append([*key.edge, micro_batch])
            passing.missing.remove((key, micro_batch))
            if not passing.missing:
                self._complete(passing.at, passing.saved)
        if stage in self._passing:
            self._passing[stage] = [passing for passing in self._passing[stage] if passing.missing]


def restore_at_cut(saved: SavedTensors, executor: StageExecutor, scheduler: Scheduler) -> None:
    """Put a stage back to what it held at a cut, and queue the messages in flight there to be received first."""
    restore(executor, saved)
    host, messages = torch.device("cpu"), saved.facts["messages"]
    for index in sorted(range(len(messages)), key=lambda index: int(messages[index][2])):
        producer, consumer, *_ = messages[index]
        scheduler.put_back(ChannelKey(Edge(producer, consumer), "backward"), saved.get_all(f"messages/{index}", host))
