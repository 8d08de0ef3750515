"""One order for the operations of several stages: what a single process would do, if messages had as many places as wires have.

Each stage keeps its own order; of those that can go on, the one nearest to the head does. So an operation comes after all
that it needs: a process that does its own part of the sequence, in its order, waits only for what others do before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from petra_graph.graph.node_graph import INPUT
from petra_graph.program.channels import capacity
from petra_graph.program.schedule import Action, Verb, order
from petra_graph.program.stage_program import StageProgram


def sequence(programs: Sequence[StageProgram], micro_batches: range) -> Iterator[tuple[int, Action]]:
    """Yield all operations between two drains, each with its stage's number.

    Args:
        programs: of all stages.
        micro_batches: their numbers, consecutive, counted from the run's start.
    """
    counts = _Counts(programs)
    orders = [order(program.depth, micro_batches, program.accumulation, program.flush) for program in programs]
    following = [next(actions, None) for actions in orders]
    while any(following):
        # Always the nearest to the head: it takes messages before others send more.
        stage = next(
            stage
            for stage, action in reversed(list(enumerate(following)))
            if action is not None and counts.allow(stage, action.verb)
        )
        action = following[stage]
        assert action is not None
        yield programs[stage].index, action
        counts.add(stage, action.verb)
        following[stage] = next(orders[stage], None)


class _Counts:
    """How many forwards and backwards every stage has done, stages counted from 0."""

    def __init__(self, programs: Sequence[StageProgram]) -> None:
        self._done = {"forward": [0] * len(programs), "backward": [0] * len(programs)}
        place = {name: at for at, program in enumerate(programs) for name in program.nodes}
        # stage -> those that it reads from in a forward, and those that read from it, each with the messages between them
        self._before: list[dict[int, int]] = [{} for _ in programs]
        self._after: list[dict[int, int]] = [{} for _ in programs]
        for at, program in enumerate(programs):
            for producer in {place[edge.producer] for edge in program.receives if edge.producer != INPUT}:
                room = capacity(programs[producer].depth, program.depth)
                self._before[at][producer] = self._after[producer][at] = room

    def allow(self, stage: int, verb: Verb) -> bool:
        """Whether a stage's operation has what it needs, and room for what it sends."""
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
