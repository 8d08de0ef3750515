"""The order of operations of one stage: one number, its depth, decides it.

Three stages, five micro-batches, `1f1b` (depths 3, 2, 1), accumulation 2:

    stage 1   F0 F1 F2 B0 F3 B1 U F4 B2 B3 U B4 U
    stage 2   F0 F1 B0 F2 B1 U F3 B2 F4 B3 U B4 U
    stage 3   F0 B0 F1 B1 U F2 B2 F3 B3 U F4 B4 U

A stage does `depth` forwards, then alternates backward and forward in micro-batch order, and finishes its backwards
when the data ends, at a drain. An update follows the backward that completes a window of k micro-batches, or the
drain's last backward. Nothing is ever reordered, so timing decides nothing.

    schedule     depth(j)       staleness   source
    lockstep     2(J-j) + 1     2(J-j)      PETRA equation (5)
    1f1b         J-j + 1        J-j         PipeDream, https://arxiv.org/abs/1806.03377
    sequential   1              0           the paper's basic model parallelism

On a graph J-j is the longest path from stage j to the head's stage, counted in stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from attrs import frozen

from petra_graph.spec.model import ScheduleName

Verb = Literal["forward", "backward", "update"]


@frozen
class Action:
    """One operation of a stage; `micro_batch` counts from the run's start."""

    verb: Verb
    micro_batch: int

    def __str__(self) -> str:
        """Write as the table above: F0, B0, U."""
        return "U" if self.verb == "update" else f"{self.verb[0].upper()}{self.micro_batch}"


def depth(schedule: ScheduleName, distance: int) -> int:
    """Return how many forwards a stage at `distance` = J-j from the head does before its first backward."""
    match schedule:
        case "lockstep":
            return 2 * distance + 1
        case "1f1b":
            return distance + 1
        case "sequential":
            return 1


def order(depth: int, micro_batches: range, accumulation: int) -> Iterator[Action]:
    """Yield a stage's operations between two drains.

    Args:
        depth: forwards before the first backward, at least 1.
        micro_batches: their numbers, consecutive, counted from the run's start.
        accumulation: micro-batches in one update; the last window may be shorter.
    """
    ahead = micro_batches[:depth]
    for m in ahead:
        yield Action("forward", m)
    for done, m in enumerate(micro_batches, start=1):
        yield Action("backward", m)
        if done % accumulation == 0 or done == len(micro_batches):
            yield Action("update", m)
        if m + depth in micro_batches:
            yield Action("forward", m + depth)
