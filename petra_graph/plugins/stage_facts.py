"""What a stage knows of its own delay: the updates that it makes between the forward and the backward of a micro-batch.

Between two drains, with accumulation k, a stage of depth D does its forward of micro-batch n when its backwards before n - D + 1 are
done, and its backward of n after all backwards before n. The formula that follows is in plugins/guide/optimizers.md. The delay of an
update is the mean over its window: while the pipeline is full, (D - 1) / k.
"""

from __future__ import annotations

from attrs import evolve, frozen

from petra_graph.spec.model import Flush


@frozen(kw_only=True)
class StageFacts:
    """A stage of a pipeline, for optimizers, learning-rate schedules and callbacks that ask for it."""

    index: int  # from 1 to `stages`, the head's
    stages: int
    depth: int
    accumulation: int
    replicas: int
    flush: Flush  # under "window" the pipeline drains after each window, and nothing is late
    micro_batches: int  # between two drains: those of an epoch
    filled: int = 0
    """The micro-batch, counted from the run's start, with which the pipeline last filled within an epoch, where a run was resumed under other stages."""

    @property
    def steady(self) -> float:
        """The delay of an update while the pipeline is full, in updates."""
        return steady_staleness(self.depth, self.accumulation, self.flush)

    def staleness(self, m: int) -> int:
        """Return how many updates of this stage lie between its forward and its backward of micro-batch m, counted from the run's start."""
        if self.flush == "window":
            return 0
        n = m % self.micro_batches
        filled = self.filled - (m - n)
        before_forward = backwards_before(n, self.depth, filled if filled <= n else 0)
        return n // self.accumulation - before_forward // self.accumulation

    def staleness_of_update(self, u: int) -> float:
        """Return the mean of d over the window of update u = 0, 1, ..., as of a run that had these stages from the start."""
        k, of_epoch = self.accumulation, self.micro_batches
        # An epoch has ceil(micro_batches / k) updates, and its last window may be short.
        epoch, window = divmod(u, -(-of_epoch // k))
        late = evolve(self, filled=0).staleness
        delays = [late(epoch * of_epoch + n) for n in range(window * k, min(window * k + k, of_epoch))]
        return sum(delays) / len(delays)


UNDELAYED = StageFacts(index=4, stages=4, depth=1, accumulation=1, replicas=1, flush="drain", micro_batches=1000)
"""The last of four stages."""
DELAYED = evolve(UNDELAYED, index=1, depth=4)  # the first of four stages under `1f1b`


def steady_staleness(depth: int, accumulation: int, flush: Flush) -> float:
    """Return the staleness of a stage while the pipeline is full, in updates; a pipeline that flushes each window has none."""
    return 0.0 if flush == "window" else (depth - 1) / accumulation


def backwards_before(n: int, depth: int, filled: int = 0) -> int:
    """Return the backwards that a stage has done before its forward n since the last drain; those before `filled` are done, or left out."""
    return max(n - depth + 1, filled, 0)


def updates_after(backwards: int, micro_batches: int, accumulation: int) -> int:
    """Return the updates of a stage that has done these backwards since a drain; the window before the next drain may be shorter."""
    return -(-backwards // accumulation) if backwards == micro_batches else backwards // accumulation


@frozen(kw_only=True)
class Horizon:
    """The length of a run in updates, for learning-rate schedules, which are asked for u = 0 .. updates - 1."""

    updates: int
    updates_per_epoch: int
    warmup_updates: int  # at the run's start, over which the rate rises; counted in `updates`
