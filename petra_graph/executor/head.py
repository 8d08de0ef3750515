"""The head of the network: forward, loss and gradient at once (PETRA algorithm 1, lines 26 to 30 and 35).

What is differentiated is the loss times the share of the targets that count, so that windows and replicas average over targets, and not
over micro-batches. Targets come on the CPU: their weight is known before any device has worked.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple, cast

import torch
from attrs import define, field
from torch import Tensor

from petra_graph.blocks import Head, Reversed, Streams
from petra_graph.errors import placed
from petra_graph.executor.runners import InFlight, SegmentRunner
from petra_graph.plugins.loss_and_metric import Loss, mean_loss, target_count, target_weight
from petra_graph.plugins.tensor_trees import Tree, main, mapped


class HeadResult(NamedTuple):
    """Loss and metrics of one micro-batch or evaluation batch."""

    micro_batch: int
    """-1 for an evaluation batch."""
    samples: int
    weight: float
    """Of the targets, by which losses are weighted: the number of samples, where the loss gives none."""
    counted: float
    """Targets that the metrics count: the number of samples, where the loss does not say."""
    loss: Tensor
    """Mean over the targets, a scalar without a graph."""
    metrics: Mapping[str, Tensor]
    """Sums over the samples, scalars; none where nobody asks for them."""
    compared: tuple[Tensor, Tree] | None = None
    """Of an evaluation batch: the outputs, the first where the network returns several, and the targets."""


def compare(loss: Loss, output: Tree, target: Tree, micro_batch: int = -1) -> tuple[HeadResult, Tree]:
    """Return the loss of a batch, with its graph, and the targets on the output's device; they come on the CPU, where they are weighed."""
    device = main(output).device
    beside = mapped(lambda one: one.to(device, non_blocking=device.type == "cuda"), target)
    weight = target_weight(loss, target)
    counted, mean = target_count(loss, target, weight), mean_loss(loss, output, beside, weight)
    return HeadResult(micro_batch, len(main(target)), weight, counted, mean, {}), beside


@define(eq=False, slots=False)
class HeadRunner(SegmentRunner):
    """The head and the loss behind it; the gradient of the head's input waits for the backward."""

    loss: Loss = field(kw_only=True)
    pending: InFlight[Reversed] = field(factory=InFlight, init=False)
    measures: bool = field(default=True, init=False)
    """Whether the metrics of training micro-batches are computed."""
    _one: Tensor | None = field(default=None, init=False)
    """The gradient of a loss whose targets all count."""

    def forward(self, micro_batch: int | None, inputs: Streams, target: Tree) -> HeadResult:
        """Run forward and loss of a training micro-batch, and differentiate both; None: of an evaluation batch, without a graph."""
        leaves = inputs if micro_batch is None else self.leaves(inputs)
        output = self.returned(self.run(micro_batch, leaves))
        result, beside = self.compare(micro_batch, output, target)
        if micro_batch is None:
            return result._replace(metrics=self._metrics(output, beside), compared=(main(output), beside))
        loss, one, share = result.loss, self._one, result.weight / result.samples
        if one is None or one.dtype != loss.dtype:
            one = self._one = torch.ones_like(loss)
        gradients = self.differentiate((loss,), (one if share == 1.0 else torch.full_like(loss, share),), leaves)
        self.pending.append((micro_batch, Reversed(inputs, gradients)))
        metrics = self._metrics(mapped(Tensor.detach, output), beside) if self.measures else {}
        return result._replace(loss=loss.detach(), metrics=metrics)

    def backward(self, micro_batch: int, outputs: Streams | None, gradients: Streams) -> Reversed:
        """Return the gradients of the micro-batch, which its `forward` took."""
        return self.pending.take(micro_batch)

    def returned(self, streams: Streams) -> Tree:
        """Return what the network returned, of which these are the tensors."""
        (head,) = self.modules.values()
        return cast(Head, head).returned(streams)

    def compare(self, micro_batch: int | None, output: Tree, target: Tree) -> tuple[HeadResult, Tree]:
        """Return the loss, with its graph and random numbers of its own, and the targets on the output's device; `micro_batch` as in `run`."""
        (name,) = self.modules
        with self.numerics.draws(f"the loss behind {name}", micro_batch), self._behind:
            return compare(self.loss, output, target, -1 if micro_batch is None else micro_batch)

    def _metrics(self, output: Tree, target: Tree) -> Mapping[str, Tensor]:
        with torch.no_grad(), self._behind:
            return self.loss.metrics(output, target)

    @cached_property
    def _behind(self) -> placed:
        return placed(f'behind node "{next(iter(self.modules))}"')
