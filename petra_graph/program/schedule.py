"""The order of operations in one stage, which follows from its depth; that of several stages is `program.simulation`'s.

Three stages, five micro-batches, `1f1b` (depths 3, 2, 1), accumulation 2:

    stage 1   F0 F1 F2 B0 F3 B1 U F4 B2 B3 U B4 U
    stage 2   F0 F1 B0 F2 B1 U F3 B2 F4 B3 U B4 U
    stage 3   F0 B0 F1 B1 U F2 B2 F3 B3 U F4 B4 U

A stage does `depth` forwards, then alternates backward and forward in micro-batch order, and finishes its backwards
when the data ends, at a drain. An update follows the backward that completes a window of k micro-batches, or the
drain's last backward. No operation is ever reordered, so timing has no effect. Windows are counted from the drain before,
also where the pipeline fills again in between, where a run is resumed under other stages.

    schedule     depth(j)       staleness   source
    lockstep     2(J-j) + 1     2(J-j)      PETRA equation (5)
    1f1b         J-j + 1        J-j         PipeDream, https://arxiv.org/abs/1806.03377
    sequential   1              0           the paper's basic model parallelism
    fill-drain   k              0           GPipe, https://arxiv.org/abs/1811.06965; flushed after each window

On a graph J-j is the longest path from stage j to the head's stage, counted in stages.

A pipeline cannot come to a deadlock if no stage is deeper than one that it reads from. Proof: let a producer of depth d come to B(m),
with the forwards up to m + d - 1 done. Its consumer, of depth d' <= d, needs only those up to m + d' - 1 for its own B(m) and for all
that comes before it in its order. The same holds for the consumer's consumers, and at last for the head, which needs nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from petra_graph.program.stage_program import StageProgram
from petra_graph.spec.model import Flush, RequestedSchedule, Schedule

Verb = Literal["forward", "backward", "update"]
Policy = Literal["arrival", "static"]
"""When a process begins an operation: when its messages have arrived, or in one order of all stages."""


class Action(NamedTuple):
    """One operation of a stage; `micro_batch` counts from the run's start."""

    verb: Verb
    micro_batch: int

    def __str__(self) -> str:
        """Write as the table above: F0, B0, U."""
        return "U" if self.verb == "update" else f"{self.verb[0].upper()}{self.micro_batch}"


def depths(schedule: Schedule, distances: Sequence[int], accumulation: int) -> tuple[int, ...]:
    """Return the depth of each stage under a schedule, of which `distances` are each one's J-j; a list gives the depths themselves."""
    match schedule:
        case "lockstep":
            return tuple(2 * distance + 1 for distance in distances)
        case "1f1b":
            return tuple(distance + 1 for distance in distances)
        case "sequential":
            return (1,) * len(distances)
        case "fill-drain":
            return (accumulation,) * len(distances)
        case _:
            return schedule


def schedule_text(schedule: RequestedSchedule) -> str:
    """Return a schedule as users read it."""
    if isinstance(schedule, str):
        return schedule
    if len(schedule) > 1 and len(set(schedule)) == 1:
        return f"depth {schedule[0]} in every stage"
    return f"depths {', '.join(map(str, schedule))}"


def order(
    depth: int, micro_batches: range, accumulation: int, flush: Flush = "drain", filled: int = 0
) -> Iterator[Action]:
    """Yield a stage's operations between two drains.

    Args:
        micro_batches: their numbers, consecutive, counted from the run's start.
        flush: "window" finishes every window's backwards before the next one's forwards.
        filled: the pipeline filled again before this forward; the operations on the micro-batches before it are left out.
    """
    if flush == "window":
        for start in range(0, len(micro_batches), accumulation):
            window = micro_batches[start : start + accumulation]
            yield from order(depth, window, accumulation, filled=filled)
        return
    left = micro_batches[max(0, filled - micro_batches.start) :]
    for m in left[:depth]:
        yield Action("forward", m)
    for m in left:
        yield Action("backward", m)
        if (m - micro_batches.start + 1) % accumulation == 0 or m == micro_batches[-1]:
            yield Action("update", m)
        if m + depth in micro_batches:
            yield Action("forward", m + depth)


def program_order(program: StageProgram, micro_batches: range, filled: int = 0) -> Iterator[Action]:
    """Yield the operations of a stage's program between two drains; the arguments are those of `order`."""
    return order(program.depth, micro_batches, program.accumulation, program.flush, filled)
