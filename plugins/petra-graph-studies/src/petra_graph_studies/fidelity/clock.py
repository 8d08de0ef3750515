"""The number of updates that each stage has made when another stage operates: a global clock that the depths determine.

Between two drains a stage of staleness tau does its forward of micro-batch m when tau of its own backwards before m are
still to come. The micro-batch takes as long to the head as back. So stage j differentiates micro-batch m when stage i
has finished its backwards of all micro-batches before

    m + ceil((tau_j - tau_i) / 2)

which is equation (5) of PETRA under `lockstep`, where tau = 2(J-j): stages nearer to the head are ahead by one micro-batch
a stage. Each stage's number of updates, for three stages, k = 1, micro-batch 4:

                    lockstep         1f1b            sequential
    forwards        0  2  4          2  3  4         4  4  4
    backward of 1   4  5  6          4  5  5         4  4  4
    backward of 2   3  4  5          4  4  5         4  4  4
    backward of 3   2  3  4          3  4  4         4  4  4

Under `1f1b` it is the clock on which every stage does a forward or a backward at each half tick, and for a list of depths
it is a convention. Without delay, and where the pipeline flushes after each window, all stages update together.

Decision: the clock counts; it does not read the run. A runtime may let a stage be ahead of the clock for a while, which
changes no number that the stage computes, and so must not change a probe's reference either.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from petra_graph.kinds.stage_facts import backwards_before, updates_after
from petra_graph.spec.model import Flush

# i, j stages counted from 0; m micro-batch counted from the last drain; tau staleness; k accumulation

Versions = tuple[int, ...]
"""For each stage, how many updates it has made since the last drain."""


@frozen(kw_only=True)
class Clock:
    """The clock of all stages between two drains."""

    depths: Sequence[int]
    """Of each stage."""
    micro_batches: int
    """Until the next drain."""
    accumulation: int
    flush: Flush
    filled: int = 0
    """The micro-batch with which the pipeline filled again."""

    def at_forward(self, m: int) -> Versions:
        """Return each stage's updates before its own forward of micro-batch m."""
        return tuple(self._updates(m, backwards_before(m, depth)) for depth in self.depths)

    def at_backward(self, m: int, j: int) -> Versions:
        """Return all stages' updates before stage j's backward of micro-batch m."""
        return tuple(self._updates(m, m + -((depth - self.depths[j]) // 2)) for depth in self.depths)

    def _updates(self, m: int, done: int) -> int:
        """Return the updates of a stage that has done `done` backwards at its part of micro-batch m."""
        if self.flush == "window":
            return m // self.accumulation
        done = min(max(done, self.filled, 0), self.micro_batches)
        return updates_after(done, self.micro_batches, self.accumulation)
