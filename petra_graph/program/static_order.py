"""One order for the operations of several stages: a pure function of their programs, free of deadlock.

Each stage keeps its own order. Of the stages whose next operation has its messages, and room for the messages that it
sends, the stage nearest to the head goes first. So every operation comes after all that it needs: a process that performs
its own part of this order waits only for operations that come before.

An evaluation goes batch by batch, each from the first stage to the head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from petra_graph.program.schedule import Action, Verb, order
from petra_graph.program.stage_program import StageProgram


def static_order(programs: Sequence[StageProgram], micro_batches: range) -> Iterator[tuple[int, Action]]:
    """Yield all operations between two drains, each with its stage's index.

    Args:
        programs: of all stages.
        micro_batches: their numbers, consecutive, counted from the run's start.
    """
    counts = _Counts(programs)
    orders = [order(program.depth, micro_batches, program.accumulation, program.flush) for program in programs]
    following = [next(actions, None) for actions in orders]
    while any(following):
        stage = next(
            stage
            for stage in reversed(range(len(programs)))
            if (action := following[stage]) is not None and counts.allow(stage, action.verb)
        )
        action = following[stage]
        assert action is not None
        yield programs[stage].index, action
        counts.add(stage, action.verb)
        following[stage] = next(orders[stage], None)


def static_evaluation_order(programs: Sequence[StageProgram], batches: range) -> Iterator[tuple[int, Action]]:
    """Yield the forwards of an evaluation, each with its stage's index."""
    return ((program.index, Action("forward", batch)) for batch in batches for program in programs)


class _Counts:
    """The forwards and backwards that every stage has done, stages counted from 0."""

    def __init__(self, programs: Sequence[StageProgram]) -> None:
        self._done = {"forward": [0] * len(programs), "backward": [0] * len(programs)}
        # For each stage, those that it reads from in a forward, and those that read from it, with the capacity between.
        self._before: list[dict[int, int]] = [{} for _ in programs]
        self._after: list[dict[int, int]] = [{} for _ in programs]
        for channel in (channel for program in programs for channel in program.channels):
            if channel.key.direction == "forward":
                sender, receiver = channel.sender - 1, channel.receiver - 1
                self._before[receiver][sender] = self._after[sender][receiver] = channel.capacity

    def allow(self, stage: int, verb: Verb) -> bool:
        """Whether a stage's operation has its messages, and room for the messages that it sends."""
        if verb == "update":
            return True
        done = self._done[verb]
        read, written = (self._before, self._after) if verb == "forward" else (self._after, self._before)
        return all(done[other] > done[stage] for other in read[stage]) and all(
            done[stage] - done[other] < room for other, room in written[stage].items()
        )

    def add(self, stage: int, verb: Verb) -> None:
        """Count an operation."""
        if verb != "update":
            self._done[verb][stage] += 1
