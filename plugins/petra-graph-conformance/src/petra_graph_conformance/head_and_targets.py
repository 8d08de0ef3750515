"""Whether head, loss, metrics and data of a run fit: they are called with the head's outputs and the data set's targets."""

from __future__ import annotations

from collections.abc import Sequence
from math import isclose, prod

import numpy as np
import torch
from attrs import evolve, frozen
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from petra_graph.blocks import Shape
from petra_graph.errors import PluginError, Problem, RunFailed, SpecError, shown, suggestion
from petra_graph.executor.head import HeadRunner
from petra_graph.executor.numerics import NumericsContext
from petra_graph.executor.place_block import place
from petra_graph.graph.node_graph import Node
from petra_graph.kinds.checked_samples import CheckedSplit
from petra_graph.kinds.data_facts import zero_targets
from petra_graph.kinds.loss import Loss
from petra_graph.kinds.tensor_trees import Tree, main
from petra_graph.measure.initial_blocks import initial_block
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.training.data.micro_batches import OpenedData
from petra_graph.training.loop.meters import MetricsOfEvaluation
from petra_graph.training.prepared_run import Prepared
from petra_graph.training.record.digests import spread_indices
from petra_graph.training.streams_of_samples import streams_of_samples

_SAMPLES = 2
"""The targets of zeros."""
_ALIKE = 1e-3
"""The relative difference of two losses that are the same up to rounding."""
_TARGETS, _LARGE = 8, 2**16
"""The targets of the data set; where outputs have more values than `_LARGE`, two."""


@frozen
class HeadAndTargets:
    """The head of a network, and the targets with which its outputs are compared."""

    prepared: Prepared

    @property
    def network(self) -> MeasuredNetwork:
        return self.prepared.network

    @property
    def opened(self) -> OpenedData:
        return self.prepared.opened

    @property
    def loss(self) -> Loss:
        """As the run calls it."""
        return self.prepared.training.loss

    @property
    def head(self) -> Node:
        return self.network.graph.nodes[self.network.graph.head]

    @property
    def output(self) -> Shape:
        """The shape of the head's first output for one sample."""
        return self.network.shapes[self.network.graph.head].outputs[0]

    @property
    def several(self) -> bool:
        """Whether the loss is given several outputs or targets, or one in a structure."""
        return self.network.shapes[self.network.graph.head].several or self.opened.data.facts.several_targets

    @property
    def numerics(self) -> NumericsContext:
        """Those of the run, on the CPU."""
        return NumericsContext.of_run(self.network.spec, self.opened.data.facts)

    def require_loss(self) -> None:
        """Call a first-party loss.

        Raises:
            SpecError: it cannot compare the head's outputs with the data set's targets.
        """
        if not self.network.checked.loss.plugin.is_first_party:
            return
        facts, head = self.opened.data.facts, self.head
        try:
            self.loss(torch.zeros(_SAMPLES, *self.output), self.zeros())
        except PluginError as error:
            outputs, of_data = (list(one) or "one number" for one in (self.output, facts.target_shape))
            reason = error.problems[0].message.rpartition("Error: ")[2]
            problem = Problem(
                message=f'the head "{head.name}" has outputs {outputs} a sample, and the data set targets {of_data}: {reason}',
                hint=f"change the head or its options, or {self.network.checked.loss.plugin}",
                path=head.path,
            )
            raise SpecError(problem) from error

    def require_mixing(self) -> None:
        """Call the loss on shares of the classes, which are the targets of a training that mixes samples.

        Raises:
            SpecError: it refuses them, or is another for the share of a single class than for this class.
        """
        facts = self.opened.data.facts
        if not self.opened.batches.mixes:
            return
        classes = torch.arange(_SAMPLES) % (facts.classes or 1)
        shares = functional.one_hot(classes, facts.classes or 1).float()
        outputs = self.returned(_SAMPLES, train=True) if self.several else torch.randn(_SAMPLES, *self.output)
        loss = self.network.checked.loss.plugin
        try:
            of_shares = float(self.loss(outputs, shares))
            self.loss.metrics(outputs, shares)
            of_classes = float(self.loss(outputs, classes))
        except PluginError as error:
            reason = error.problems[0].message.rpartition("Error: ")[2]
        else:
            if isclose(of_shares, of_classes, rel_tol=_ALIKE, abs_tol=_ALIKE):
                return
            reason = f"it is {of_shares:.4g} where a sample has the share 1 of a class, and {of_classes:.4g} where it has this class"
        message = f"the data set mixes training samples, whose targets are then shares of the classes, and {loss} cannot read them: {reason}"
        hint = "mix no samples, or use a loss that reads shares, float32 [n, classes], as cross-entropy does"
        raise SpecError(Problem(message=message, hint=hint, path=("loss", "name")))

    def require_metrics(self) -> None:
        """Let metrics see outputs, and look for that of `checkpoint.best` among what an evaluation records.

        Raises:
            SpecError: a metric cannot compare the head's outputs with such targets, or has a name that the loss has, or `best` has none.
            PluginError: the data set raised, or returned what it does not declare.
        """
        checked, best = self.network.checked, self.network.spec.checkpoint.best
        if best is None and not checked.metrics:
            return
        first_party = all(one.plugin.is_first_party for one in (checked.loss, *checked.metrics))
        targets = self.zeros() if first_party else self.some_targets()
        generator = torch.Generator().manual_seed(0)
        outputs = torch.randn(len(main(targets)), *self.output, generator=generator)
        returned = self.returned(len(outputs), train=False) if self.several else outputs
        metrics, of_loss = MetricsOfEvaluation.of(checked.metrics), ["loss", *self.loss.metrics(returned, targets)]
        try:
            metrics.update(outputs, targets)
        except PluginError as error:
            (problem,) = error.problems
            reason = problem.message.rpartition("Error: ")[2]
            message = f"the metric cannot compare the head's outputs with the data set's targets: {reason}"
            hint = "leave out the metric, or change the head or the data set"
            raise SpecError(evolve(problem, message=message, hint=hint)) from error
        split = self.network.spec.data.evaluated
        recorded = [f"{split}/{name}" for name in (*of_loss, *metrics.values(of_loss))]
        if best is not None and best not in recorded:
            message = f"checkpoint.best = {shown(best)} is not a metric of an evaluation of this run"
            raise SpecError(Problem(message=message, hint=suggestion(best, recorded), path=("checkpoint", "best")))

    def zeros(self) -> Tree:
        """Return targets of zeros."""
        return zero_targets(self.opened.data.facts, _SAMPLES)

    def some_targets(self) -> Tree:
        """Fetch targets that are spread over the test data, whose order may be that of classes.

        Those that losses pass over (-100) are given a class: a sample may not have another target.

        Raises:
            PluginError: the data set raised, or returned what it does not declare.
        """
        data = self.opened.data
        try:
            targets = targets_of(data.test, self.spread(_TARGETS if prod(self.output) <= _LARGE else 2))
        except RunFailed as error:
            raise PluginError([evolve(one, path=("data", "name")) for one in error.problems]) from error
        return targets if data.facts.classes is None else targets.clamp(min=0)

    def spread(self, count: int) -> NDArray[np.intp]:
        """Return indices of test samples."""
        return spread_indices(len(self.opened.data.test), count)

    def returned(self, count: int, *, train: bool) -> Tree:
        """Return what the network returns, in training or in evaluation, for as many test samples."""
        numerics, graph = self.numerics, self.network.graph
        samples = samples_of(self.opened.data.test, self.spread(count))
        before = streams_of_samples(graph, samples, numerics, among=set(graph.order) - {graph.head})
        inputs: Sequence[Tensor] = [stream for producer in self.head.inputs for stream in before[producer]]
        shapes = [tuple(one.shape[1:]) for one in inputs]
        head = place(initial_block(self.head, shapes, numerics.seed), numerics)
        runner = HeadRunner({graph.head: head}, numerics, reads_samples=False, loss=self.loss)
        head.train(train)
        with torch.no_grad(), runner.frozen:
            return runner.returned(runner.run(0 if train else None, tuple(inputs)))


def targets_of(split: CheckedSplit, indices: NDArray[np.intp]) -> Tree:
    """Fetch targets, without their samples where the split can."""
    alone = split.fetch_targets
    return split.fetch(indices, seed=0, epoch=0)[1] if alone is None else alone(indices)


def samples_of(split: CheckedSplit, indices: NDArray[np.intp]) -> Tree:
    """Fetch samples."""
    return split.fetch(indices, seed=0, epoch=0)[0]
