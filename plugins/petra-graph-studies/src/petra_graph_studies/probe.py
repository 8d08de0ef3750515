"""The callback `probe`: how close each stage's gradient is to the delayed gradient and to the end-to-end gradient (PETRA appendix B).

At a probed micro-batch m, three gradients of each stage are compared:

    its own       the contribution of the stage's backward of m to `grad`, collected while the stage trains
    delayed       at the inputs and parameters of the forward of m, in every stage: the gradient of storing both; where the
                  forward uses predicted parameters, at these
    end-to-end    plain backpropagation of m, all stages at the parameters of the tick of this stage's backward of m

Backward through stored inputs and stored parameters is backpropagation through the forward as it was. So the delayed
gradients of all stages are those of one plain backward in which each stage stands at the parameters of its own forward,
and need no second pipeline during the training. The tick is the clock's of `petra_graph_studies.replay`.

Decision: a probe observes the stages and computes gradients itself; it changes no state and restores none. The training is the same
to the bit with and without it: parameters, running statistics, optimizer state, random numbers.

The cost, at probed micro-batches alone: up to J + 1 forwards and backwards of the whole network (the backward for stage
j ends at stage j), the graph of one of them at a time, and copies of the parameters that are overwritten before the
probe uses them: those of the forward, and those of a tick while the stages pass it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated

import torch
from attrs import define, field
from torch import Tensor

from petra_graph.blocks import Streams
from petra_graph.executor.delayed_weights import copied_parameters
from petra_graph.executor.stage import StageExecutor, StageObserver
from petra_graph.graph.node_graph import INPUT
from petra_graph.plugins import AtLeast, Callback, Problem
from petra_graph.plugins.tensor_trees import Tree
from petra_graph.program.cut import Cut
from petra_graph.program.stage_program import Segment
from petra_graph_studies.replay import Clock, Contributions, Gradient, Snapshots, Versions, contributions, gradients


class ProbeCallback(Callback):
    """Compares the gradient that trains each stage with the delayed one and the end-to-end one, as metrics `probe/...`.

    It changes nothing of the run, and needs all stages in one process.
    """

    def __init__(
        self,
        *,
        per_epoch: Annotated[
            int,
            "micro-batches of an epoch to probe (the paper: 15); each costs at most one plain forward and backward of the network for each "
            "stage, and one more",
            AtLeast(1),
        ] = 15,
    ) -> None:
        self._per_epoch = per_epoch

    def problems(self, micro_batches: int | None, processes: int) -> Iterator[Problem]:
        """Yield why a run cannot be probed; `micro_batches` are those of an epoch, None if their number is not known."""
        if processes > 1:
            message = f"a probe looks at all stages at once, and {processes} processes share them"
            yield Problem(message=message, hint="run in one process, or leave the probe out")
        elif micro_batches is not None and self._per_epoch > micro_batches:
            message = f"an epoch has {micro_batches} micro-batches, and {self._per_epoch} are to be probed"
            yield Problem(message=message, hint=f"make it {micro_batches} or less", path=("per_epoch",))

    def chosen(self, micro_batches: range) -> list[int]:
        """Return the micro-batches of an epoch that are probed, the middles of equal parts; all, if there are fewer."""
        count = len(micro_batches)
        times = min(self._per_epoch, count)
        return [micro_batches[(2 * part + 1) * count // (2 * times)] for part in range(times)]

    def observe_stages(
        self, stages: Sequence[StageExecutor], record: Callable[[int, Mapping[str, float]], None]
    ) -> Callable[[range, int | None, int], None]:
        """Observe all stages, and record a micro-batch's metrics; return what is called when they begin between two drains, as `Probe.begin`."""
        probe = Probe(stages, record)

        def begin(micro_batches: range, at: int | None, filled: int) -> None:
            probe.begin(micro_batches, self.chosen(micro_batches), at, filled)

        return begin


@define
class _ProbedStage:
    """The work of one stage on a probed micro-batch."""

    own: Contributions = field(factory=dict)
    """The gradient that trains the stage."""
    delayed: Gradient = field(factory=dict)
    end_to_end: Gradient = field(factory=dict)
    inputs: dict[tuple[str, ...], Streams] = field(factory=dict)
    """Inputs of the forward in segments that reconstruct, by the segment's nodes."""
    predicted: dict[str, Mapping[str, Tensor]] = field(factory=dict)
    """The parameters of the forward, by node, where they are predicted ones."""
    errors: list[tuple[Tensor, Tensor]] = field(factory=list)
    """Squared norms of a reconstruction's error, and of the input of the forward."""
    finished: bool = False
    """The stage's backward is done."""

    def quantities(self) -> Iterator[tuple[str, float]]:
        """Compare the three gradients and the reconstructed inputs; a quantity that is undefined is left out."""
        for name, one, other in (
            ("{}_to_delayed", self.own, self.delayed),
            ("{}_to_end_to_end", self.own, self.end_to_end),
            ("delayed_{}_to_end_to_end", self.delayed, self.end_to_end),
        ):
            norms = _norm(one), _norm(other)
            if all(0 < norm < math.inf for norm in norms):
                yield name.format("cosine"), _dot(one, other) / (norms[0] * norms[1])
                yield name.format("ratio"), norms[0] / norms[1]
        if self.errors:
            error, norm = (float(torch.stack(squares).sum().sqrt()) for squares in zip(*self.errors, strict=True))
            if norm:
                yield "reconstruction_error", error / norm


@define(kw_only=True)
class _ProbedMicroBatch:
    """One micro-batch on its way through the stages."""

    at_forward: Versions
    pending: dict[Versions, list[int]]
    """The parameters at which gradients are still to be computed, and the stages of which those are the end-to-end ones."""
    stages: Sequence[_ProbedStage]
    samples: Streams | None = None
    target: Tree | None = None


class Probe:
    """Compares the gradients of some micro-batches, in all stages."""

    def __init__(self, executors: Sequence[StageExecutor], report: Callable[[int, Mapping[str, float]], None]) -> None:
        self.executors = executors
        self.report = report
        """Called with a micro-batch and its measurements by metric, between two operations, when all stages are compared."""
        self.snapshots = Snapshots(executors)
        self.probed: dict[int, _ProbedMicroBatch] = {}
        """The micro-batches whose comparison is not complete."""
        for index, executor in enumerate(executors):
            executor.observe(_ProbeObserver(self, index))

    def begin(self, micro_batches: range, chosen: Collection[int], at: int | None = None, filled: int = 0) -> None:
        """Begin to probe the chosen micro-batches of those between two drains, counted from the run's start.

        It begins at the drain, or `at` the cut before this forward, between two probed ones; `filled` is as in `program.schedule.order`.
        """
        programs = [executor.program for executor in self.executors]
        cut = Cut(micro_batches=micro_batches, at=micro_batches.start if at is None else at, filled=filled)
        clock = Clock(
            depths=[program.depth for program in programs],
            micro_batches=len(micro_batches),
            accumulation=programs[0].accumulation,
            flush=programs[0].flush,
            filled=filled - micro_batches.start,
        )
        self.snapshots = Snapshots(self.executors, [cut.updates(program) for program in programs])
        self.probed = {}
        for micro_batch in (micro_batch for micro_batch in chosen if micro_batch >= cut.at):
            since_drain = micro_batch - micro_batches.start
            at_forward = clock.at_forward(since_drain)
            pending: dict[Versions, list[int]] = {at_forward: []}
            for stage in range(len(programs)):
                pending.setdefault(clock.at_backward(since_drain, stage), []).append(stage)
            for versions in pending:
                self.snapshots.request(versions)
            stages = [_ProbedStage() for _ in programs]
            self.probed[micro_batch] = _ProbedMicroBatch(at_forward=at_forward, pending=pending, stages=stages)

    def advance(self) -> None:
        """Compute the gradients whose parameters are there, and report the micro-batches that are complete."""
        for micro_batch, probed in list(self.probed.items()):
            for versions in [versions for versions in probed.pending if self.snapshots.reached(versions)]:
                self._replay(micro_batch, probed, versions)
            if not probed.pending and all(stage.finished for stage in probed.stages):
                del self.probed[micro_batch]
                quantities = ((i, found) for i, stage in enumerate(probed.stages, 1) for found in stage.quantities())
                self.report(
                    micro_batch, {f"probe/{name}/stage-{index:02d}": value for index, (name, value) in quantities}
                )

    def _replay(self, micro_batch: int, probed: _ProbedMicroBatch, versions: Versions) -> None:
        """Compute the gradients at some parameters, once the micro-batch has reached the head."""
        if probed.samples is None or probed.target is None:
            return
        at = partial(gradients, self.executors, micro_batch, samples=probed.samples, target=probed.target)
        end_to_end = probed.pending.pop(versions)
        parameters = self.snapshots.at(versions)
        found: Mapping[int, Gradient] = {}
        if versions == probed.at_forward:
            used = [{**of, **stage.predicted} for of, stage in zip(parameters, probed.stages, strict=True)]
            found = at(parameters=used, stages=range(len(self.executors)))
            for index, gradient in found.items():
                probed.stages[index].delayed = gradient
        if end_to_end:
            # At the parameters of the forward itself, the two are one.
            if versions != probed.at_forward or any(stage.predicted for stage in probed.stages):
                found = at(parameters=parameters, stages=end_to_end)
            for index in found.keys() & end_to_end:
                probed.stages[index].end_to_end = found[index]
        self.snapshots.release(versions)


def _dot(one: Gradient, other: Gradient) -> float:
    """Return the product of two gradients in float64; a parameter that is missing from one of them is zero there."""
    products = [(one[parameter].double() * other[parameter].double()).sum() for parameter in one if parameter in other]
    return float(torch.stack(products).sum()) if products else 0.0


def _norm(gradient: Gradient) -> float:
    return math.sqrt(_dot(gradient, gradient))


class _ProbeObserver(StageObserver):
    """Observes one stage for the probe."""

    def __init__(self, probe: Probe, index: int) -> None:
        self._probe = probe
        self._index = index
        self._executor = probe.executors[index]

    @contextmanager
    def forward(self, micro_batch: int, target: Tree | None) -> Iterator[None]:
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
        predicted = self._executor.predicted
        if predicted is not None and predicted.delay_of(micro_batch):
            own = {name: self._executor.modules[name] for name in segment.nodes}
            probed.stages[self._index].predicted |= copied_parameters(own)
        if any(entry.edge.producer == INPUT for entry in segment.inputs):
            probed.samples = inputs
        elif segment.keeps == "nothing":
            probed.stages[self._index].inputs[segment.nodes] = inputs

    def segment_backward(self, micro_batch: int, segment: Segment, inputs: Streams) -> None:
        probed = self._probe.probed.get(micro_batch)
        if probed is None:
            return
        stage = probed.stages[self._index]
        for read, reconstructed in zip(stage.inputs.pop(segment.nodes, ()), inputs, strict=False):
            exact = read.double()
            stage.errors.append(((reconstructed.double() - exact).square().sum(), exact.square().sum()))

    @contextmanager
    def _contributions(self, micro_batch: int) -> Iterator[_ProbedMicroBatch | None]:
        """Collect the stage's contributions to its gradients where the micro-batch is probed."""
        probed = self._probe.probed.get(micro_batch)
        if probed is None:
            yield None
            return
        parameters = (p for module in self._executor.modules.values() for p in module.parameters())
        with contributions(parameters) as found:
            yield probed
        own = probed.stages[self._index].own
        for parameter, gradient in found.items():
            own[parameter] = own[parameter] + gradient if parameter in own else gradient
