"""How true each stage's gradient is: against the delayed gradient, and against the end-to-end one (PETRA appendix B).

At a probed micro-batch m, three gradients of each stage are compared:

    its own       what the stage's backward of m adds to `grad`, heard while it trains (petra, or whatever the method is)
    delayed       at the inputs and parameters of the forward of m, in every stage: what storing both would give
    end-to-end    plain backpropagation of m, all stages at the parameters of the tick of this stage's backward of m

Backward through stored inputs and stored parameters is backpropagation through the forward as it was. So the delayed
gradients of all stages are those of one plain backward in which each stage stands at the parameters of its own forward,
and need no chain beside the training. The tick is the clock's of `petra_graph.program.clock`.

Decision: a probe looks on and computes anew; it takes nothing apart and puts nothing back. What trains is the same to
the bit with and without it: parameters, running statistics, optimizer state, random numbers.

What it costs, at probed micro-batches alone: up to J + 1 forwards and backwards of the whole network (the one for stage j
goes back to stage j only), the graph of one of them at a time, and copies of the parameters that are overwritten before
they are needed: those of the forward, and those of a tick while the stages pass it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

from torch import Tensor

from petra_graph.blocks import Reversed, Streams
from petra_graph.errors import RunFailed
from petra_graph.executor.contributions import contributions
from petra_graph.executor.observer import StageObserver
from petra_graph.executor.stage import StageExecutor
from petra_graph.fidelity.probed import Probed, probed_at
from petra_graph.fidelity.replay import Example, gradients
from petra_graph.fidelity.snapshots import Snapshots
from petra_graph.graph.node_graph import INPUT
from petra_graph.program.clock import Clock, Versions
from petra_graph.program.stage_program import Segment
from petra_graph.record.fidelity import Fidelity


class Probe:
    """Looks at some micro-batches, in all stages."""

    def __init__(self, executors: Sequence[StageExecutor], report: Callable[[Fidelity], None]) -> None:
        self.executors = executors
        self.report = report
        """Called between two operations, when a probed micro-batch has been compared in all stages."""
        self.snapshots = Snapshots(executors)
        self.probed: dict[int, Probed] = {}
        """The micro-batches that are still to be compared somewhere."""
        for index, executor in enumerate(executors):
            executor.watch(_StageWatcher(self, index))

    def begin(self, micro_batches: range, chosen: Collection[int]) -> None:
        """Begin to look, at a drain.

        Args:
            micro_batches: until the next drain, counted from the run's start.
            chosen: those to look at.
        """
        programs = [executor.program for executor in self.executors]
        clock = Clock(
            depths=[program.depth for program in programs],
            micro_batches=len(micro_batches),
            accumulation=programs[0].accumulation,
            flush=programs[0].flush,
        )
        self.snapshots = Snapshots(self.executors)
        self.probed = {m: probed_at(m, m - micro_batches.start, clock) for m in chosen}
        for probed in self.probed.values():
            for versions in probed.open:
                self.snapshots.want(versions)

    def canonicalize(self) -> None:
        """Compute what can be computed by now."""
        for probed in list(self.probed.values()):
            if probed.example is None:
                continue
            for versions in [versions for versions in probed.open if self.snapshots.reached(versions)]:
                self._replay(probed, probed.example, versions)
            if probed.complete:
                del self.probed[probed.micro_batch]
                self.report(Fidelity(micro_batch=probed.micro_batch, stages=tuple(probed.compared())))

    def _replay(self, probed: Probed, example: Example, versions: Versions) -> None:
        wanted = probed.open.pop(versions)
        stages = range(len(self.executors)) if versions == probed.at_forward else wanted
        with suppress(RunFailed):  # The mixture of parameters may leave the grid's range; training itself does not.
            found = gradients(self.executors, example, self.snapshots.at(versions), stages)
            if versions == probed.at_forward:
                probed.delayed.update(found)
            probed.end_to_end.update({stage: found[stage] for stage in wanted})
        self.snapshots.release(versions)


def spread(micro_batches: range, times: int) -> list[int]:
    """Return so many of the micro-batches, the middles of equal parts."""
    count = len(micro_batches)
    return [micro_batches[(2 * part + 1) * count // (2 * times)] for part in range(times)]


class _StageWatcher(StageObserver):
    """Looks at one stage for the probe."""

    def __init__(self, probe: Probe, index: int) -> None:
        self._probe = probe
        self._index = index
        self._executor = probe.executors[index]

    def forward(self, micro_batch: int, target: Tensor | None) -> AbstractContextManager[None]:
        probed = self._probe.probed.get(micro_batch)
        return nullcontext() if probed is None else self._heard_forward(probed, target)

    def backward(self, micro_batch: int) -> AbstractContextManager[None]:
        probed = self._probe.probed.get(micro_batch)
        return nullcontext() if probed is None else self._heard_backward(probed)

    @contextmanager
    def update(self) -> Iterator[None]:
        self._probe.snapshots.before_update(self._index)
        yield
        self._probe.snapshots.updated(self._index)
        self._probe.canonicalize()

    def entered(self, micro_batch: int, segment: Segment, inputs: Streams) -> None:
        probed = self._probe.probed.get(micro_batch)
        if probed is None:
            return
        if any(entry.edge.producer == INPUT for entry in segment.inputs):
            (probed.samples,) = inputs
        elif segment.keeps == "nothing":
            probed.stages[self._index].inputs[segment.nodes] = inputs

    def left(self, micro_batch: int, segment: Segment, found: Reversed) -> None:
        probed = self._probe.probed.get(micro_batch)
        if probed is None:
            return
        stage = probed.stages[self._index]
        for true, reconstructed in zip(stage.inputs.pop(segment.nodes, ()), found.inputs, strict=False):
            right = true.double()
            stage.errors.append(((reconstructed.double() - right).square().sum(), right.square().sum()))

    @contextmanager
    def _heard_forward(self, probed: Probed, target: Tensor | None) -> Iterator[None]:
        """Hear the head, which differentiates in its forward."""
        with self._heard(probed):
            yield
        if target is not None:
            probed.target = target
            self._probe.canonicalize()

    @contextmanager
    def _heard_backward(self, probed: Probed) -> Iterator[None]:
        with self._heard(probed):
            yield
        probed.stages[self._index].passed = True
        self._probe.canonicalize()

    @contextmanager
    def _heard(self, probed: Probed) -> Iterator[None]:
        parameters = (p for module in self._executor.modules.values() for p in module.parameters())
        with contributions(parameters) as found:
            yield
        probed.stages[self._index].own |= found
