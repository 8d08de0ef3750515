"""The cut through a running pipeline: before forward N of every stage, N counted from the run's start.

A checkpoint is the state of all stages at one cut (`executor.state`). Nothing is drained for it, which would change the numbers, and no
stage waits for another one: each copies its state when it comes to its own forward N. Under `1f1b`, the cut before forward 4:

    stage 1   F0 F1 F2 B0 F3 B1 | F4 B2 F5 B3 ...        the backward messages of micro-batch 2 are in flight from stage 2
    stage 2   F0 F1 B0 F2 B1 F3 B2 | F4 B3 ...           those of 3 from stage 3
    stage 3   F0 B0 F1 B1 F2 B2 F3 B3 | F4 B4 ...

States and messages in flight are all that the run needs to continue:

1. A stage's order is a function of its depth alone, so its operations before its forward N are known.
2. No forward message crosses the cut: producer and consumer have both done the forwards up to N - 1, and no others.
3. A stage is never less deep than its consumers, so a consumer has done at least as many backwards. The messages of those that the
   producer has not done are in flight. The producer receives them after its cut, in their order, and notes a copy of each.
4. An operation before the cut needs forwards below N and backwards that the consumer does before its own cut. So every stage reaches
   its cut whatever the others do behind theirs.
"""

from attrs import frozen

from petra_graph.plugins.stage_facts import backwards_before, updates_after
from petra_graph.program.channels import Direction
from petra_graph.program.schedule import Action
from petra_graph.program.stage_program import StageProgram
from petra_graph.spec.model import Flush


@frozen(kw_only=True)
class Cut:
    """The moment before forward `at` of every stage."""

    micro_batches: range
    """Those between the drains around the cut, counted from the run's start."""
    at: int
    """One of them, or the first one behind them: the pipeline has drained."""
    filled: int = 0
    """The pipeline filled again before this forward, if it is one of them: what was in flight there was discarded."""

    def backwards(self, depth: int, flush: Flush) -> int:
        """Return how many backwards a stage has done since the drain before."""
        forwards = self.at - self.micro_batches.start
        if flush == "window" or self.at == self.micro_batches.stop:
            return forwards
        return backwards_before(forwards, depth, self.filled - self.micro_batches.start)

    def done(self, program: StageProgram, verb: Direction) -> int:
        """Return how many forwards or backwards a stage has done since the drain before."""
        forwards = self.at - self.micro_batches.start
        return forwards if verb == "forward" else self.backwards(program.depth, program.flush)

    def updates(self, program: StageProgram) -> int:
        """Return how many updates a stage has done since the drain before."""
        done = self.backwards(program.depth, program.flush)
        return updates_after(done, len(self.micro_batches), program.accumulation)

    def precedes(self, program: StageProgram, action: Action) -> bool:
        """Whether a stage does an operation before the cut."""
        done = self.done(program, "forward" if action.verb == "forward" else "backward")
        return action.micro_batch < self.micro_batches.start + done

    def in_flight(self, sender: StageProgram, receiver: StageProgram) -> range:
        """Return the micro-batches whose backward messages a stage has sent, and their receiver has not used."""
        start = self.micro_batches.start
        return range(start + self.done(receiver, "backward"), start + self.done(sender, "backward"))


def aligned(at: int, per_epoch: int, accumulation: int, flush: Flush) -> int:
    """Return the first forward from `at` on, counted from the run's start, before which there may be a cut: between two windows that flush."""
    if flush != "window":
        return at
    epoch, done = divmod(at, per_epoch)
    return epoch * per_epoch + min(per_epoch, -(-done // accumulation) * accumulation)
