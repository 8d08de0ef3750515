"""How close each stage's gradient is to the delayed gradient and to the end-to-end gradient (PETRA appendix B).

At a probed micro-batch m, three gradients of each stage are compared:

    its own       the contribution of the stage's backward of m to `grad`, collected while the stage trains
    delayed       at the inputs and parameters of the forward of m, in every stage: the gradient of storing both
    end-to-end    plain backpropagation of m, all stages at the parameters of the tick of this stage's backward of m

Backward through stored inputs and stored parameters is backpropagation through the forward as it was. So the delayed
gradients of all stages are those of one plain backward in which each stage stands at the parameters of its own forward,
and need no second pipeline beside the training. The tick is the clock's of `petra_graph.program.clock`.

Decision: a probe observes the stages and computes anew; it changes no state and restores none. The training is the same
to the bit with and without it: parameters, running statistics, optimizer state, random numbers.

The cost, at probed micro-batches alone: up to J + 1 forwards and backwards of the whole network (the backward for stage
j ends at stage j), the graph of one of them at a time, and copies of the parameters that are overwritten before the
probe uses them: those of the forward, and those of a tick while the stages pass it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress

from torch import Tensor

from petra_graph.blocks import Reversed, Streams
from petra_graph.errors import RunFailed
from petra_graph.executor.contributions import contributions
from petra_graph.executor.observer import StageObserver
from petra_graph.executor.stage import StageExecutor
from petra_graph.fidelity.probed_micro_batch import ProbedMicroBatch, probed_micro_batch
from petra_graph.fidelity.replay import Example, gradients
from petra_graph.fidelity.snapshots import Snapshots
from petra_graph.graph.node_graph import INPUT
from petra_graph.program.clock import Clock, Versions
from petra_graph.program.stage_program import Segment
from petra_graph.record.fidelity import Fidelity


class Probe:
    """Compares the gradients of some micro-batches, in all stages."""

    def __init__(self, executors: Sequence[StageExecutor], report: Callable[[Fidelity], None]) -> None:
        self.executors = executors
        self.report = report
        """Called between two operations, when a probed micro-batch has been compared in all stages."""
        self.snapshots = Snapshots(executors)
        self.probed: dict[int, ProbedMicroBatch] = {}
        """The micro-batches whose comparison is not complete."""
        for index, executor in enumerate(executors):
            executor.observe(_ProbeObserver(self, index))

    def begin(self, micro_batches: range, chosen: Collection[int]) -> None:
        """Begin to probe, at a drain.

        Args:
            micro_batches: until the next drain, counted from the run's start.
            chosen: the micro-batches to probe.
        """
        programs = [executor.program for executor in self.executors]
        clock = Clock(
            depths=[program.depth for program in programs],
            micro_batches=len(micro_batches),
            accumulation=programs[0].accumulation,
            flush=programs[0].flush,
        )
        self.snapshots = Snapshots(self.executors)
        self.probed = {m: probed_micro_batch(m, m - micro_batches.start, clock) for m in chosen}
        for probed in self.probed.values():
            for versions in probed.pending:
                self.snapshots.request(versions)

    def advance(self) -> None:
        """Compute the gradients whose parameters are there, and report the micro-batches that are complete."""
        for probed in list(self.probed.values()):
            if probed.example is None:
                continue
            for versions in [versions for versions in probed.pending if self.snapshots.reached(versions)]:
                self._replay(probed, probed.example, versions)
            if probed.complete:
                del self.probed[probed.micro_batch]
                self.report(Fidelity(micro_batch=probed.micro_batch, stages=tuple(probed.compared())))

    def _replay(self, probed: ProbedMicroBatch, example: Example, versions: Versions) -> None:
        end_to_end = probed.pending.pop(versions)
        stages = range(len(self.executors)) if versions == probed.at_forward else end_to_end
        with suppress(RunFailed):  # The mixture of parameters may leave the grid's range; training itself does not.
            found = gradients(self.executors, example, self.snapshots.at(versions), stages)
            if versions == probed.at_forward:
                probed.delayed.update(found)
            probed.end_to_end.update({stage: found[stage] for stage in end_to_end})
        self.snapshots.release(versions)


def spread(micro_batches: range, times: int) -> list[int]:
    """Return so many of the micro-batches, the middles of equal parts."""
    count = len(micro_batches)
    return [micro_batches[(2 * part + 1) * count // (2 * times)] for part in range(times)]


class _ProbeObserver(StageObserver):
    """Observes one stage for the probe."""

    def __init__(self, probe: Probe, index: int) -> None:
        self._probe = probe
        self._index = index
        self._executor = probe.executors[index]

    @contextmanager
    def forward(self, micro_batch: int, target: Tensor | None) -> Iterator[None]:
        with self._contributions(micro_batch) as probed:  # The head differentiates in its forward.
            yield
        if probed is not None and target is not None:
            probed.target = target
            self._probe.advance()

    @contextmanager
    def backward(self, micro_batch: int) -> Iterator[None]:
        with self._contributions(micro_batch) as probed:
            yield
        if probed is not None:
            probed.stages[self._index].finished = True
            self._probe.advance()

    @contextmanager
    def update(self) -> Iterator[None]:
        self._probe.snapshots.before_update(self._index)
        yield
        self._probe.snapshots.after_update(self._index)
        self._probe.advance()

    def segment_forward(self, micro_batch: int, segment: Segment, inputs: Streams) -> None:
        probed = self._probe.probed.get(micro_batch)
        if probed is None:
            return
        if any(entry.edge.producer == INPUT for entry in segment.inputs):
            (probed.samples,) = inputs
        elif segment.keeps == "nothing":
            probed.stages[self._index].inputs[segment.nodes] = inputs

    def segment_backward(self, micro_batch: int, segment: Segment, found: Reversed) -> None:
        probed = self._probe.probed.get(micro_batch)
        if probed is None:
            return
        stage = probed.stages[self._index]
        for read, reconstructed in zip(stage.inputs.pop(segment.nodes, ()), found.inputs, strict=False):
            exact = read.double()
            stage.errors.append(((reconstructed.double() - exact).square().sum(), exact.square().sum()))

    @contextmanager
    def _contributions(self, micro_batch: int) -> Iterator[ProbedMicroBatch | None]:
        """Collect the stage's contributions to its gradients where the micro-batch is probed."""
        probed = self._probe.probed.get(micro_batch)
        if probed is None:
            yield None
            return
        parameters = (p for module in self._executor.modules.values() for p in module.parameters())
        with contributions(parameters) as found:
            yield probed
        probed.stages[self._index].gradient |= found
