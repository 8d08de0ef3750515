"""The order of operations of one stage, which follows from its depth.

Three stages, five micro-batches, `1f1b` (depths 3, 2, 1), accumulation 2:

    stage 1   F0 F1 F2 B0 F3 B1 U F4 B2 B3 U B4 U
    stage 2   F0 F1 B0 F2 B1 U F3 B2 F4 B3 U B4 U
    stage 3   F0 B0 F1 B1 U F2 B2 F3 B3 U F4 B4 U

A stage does `depth` forwards, then alternates backward and forward in micro-batch order, and finishes its backwards
when the data ends, at a drain. An update follows the backward that completes a window of k micro-batches, or the
drain's last backward. No operation is ever reordered, so timing has no effect.

    schedule     depth(j)       staleness   source
    lockstep     2(J-j) + 1     2(J-j)      PETRA equation (5)
    1f1b         J-j + 1        J-j         PipeDream, https://arxiv.org/abs/1806.03377
    sequential   1              0           the paper's basic model parallelism
    fill-drain   k              0           GPipe, https://arxiv.org/abs/1811.06965; flushed after each window

On a graph J-j is the longest path from stage j to the head's stage, counted in stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from attrs import frozen

from petra_graph.spec.model import AskedSchedule, Flush, Schedule

Verb = Literal["forward", "backward", "update"]


@frozen
class Action:
    """One operation of a stage; `micro_batch` counts from the run's start."""

    verb: Verb
    micro_batch: int

    def __str__(self) -> str:
        """Write as the table above: F0, B0, U."""
        return "U" if self.verb == "update" else f"{self.verb[0].upper()}{self.micro_batch}"


def depths(schedule: Schedule, distances: Sequence[int], accumulation: int) -> tuple[int, ...]:
    """Return the depth of each stage: the forwards that it does before its first backward.

    Args:
        schedule: its name, or the depths themselves.
        distances: each stage's J-j.
        accumulation: k, which is the depth of `fill-drain`.
    """
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


def schedule_text(schedule: AskedSchedule) -> str:
    """Return a schedule as users read it."""
    return schedule if isinstance(schedule, str) else f"depths {', '.join(map(str, schedule))}"


def order(depth: int, micro_batches: range, accumulation: int, flush: Flush = "drain") -> Iterator[Action]:
    """Yield a stage's operations between two drains.

    Args:
        depth: forwards before the first backward, at least 1.
        micro_batches: their numbers, consecutive, counted from the run's start.
        accumulation: micro-batches in one update; the last window may be shorter.
        flush: "window" finishes every window's backwards before the next one's forwards.
    """
    if flush == "window":
        for start in range(0, len(micro_batches), accumulation):
            yield from order(depth, micro_batches[start : start + accumulation], accumulation)
        return
    for m in micro_batches[:depth]:
        yield Action("forward", m)
    for done, m in enumerate(micro_batches, start=1):
        yield Action("backward", m)
        if done % accumulation == 0 or done == len(micro_batches):
            yield Action("update", m)
        if m + depth in micro_batches:
            yield Action("forward", m + depth)
