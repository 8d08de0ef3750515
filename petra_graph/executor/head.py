"""The head of the network: forward, loss and gradient at once (PETRA algorithm 1, lines 26 to 30 and 35).

What is differentiated is the loss times the share of the targets that count, so that windows and replicas average over targets, and not
over micro-batches. Targets come on the CPU: their weight is known before any device has worked.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple, cast

import torch
from attrs import define, field, frozen
from torch import Tensor

from petra_graph.blocks import Head, Reversed, Streams
from petra_graph.errors import placed
from petra_graph.executor.encoded import EncodedTensors
from petra_graph.executor.runners import InFlight, SegmentRunner
from petra_graph.plugins.loss_and_metric import Loss, mean_loss, target_count, target_weight
from petra_graph.plugins.tensor_trees import Tree, main, mapped


@frozen(kw_only=True)
class Evaluated:
    """What the loss of an evaluation batch compares."""

    outputs: Tensor
    """The first, where the network returns several."""
    targets: Tree


@frozen(kw_only=True)
class HeadResult:
    """Loss and metrics of one micro-batch or evaluation batch."""

    micro_batch: int
    samples: int
    weight: float
    """Of the targets, by which losses are weighted: the number of samples, where the loss gives none."""
    counted: float
    """Targets that the metrics count: the number of samples, where the loss does not say."""
    loss: Tensor
    """Mean over the targets, a scalar without a graph."""
    metrics: Mapping[str, Tensor]
    """Sums over the samples, scalars; none where nobody asks for them."""
    evaluated: Evaluated | None = None
    """Of an evaluation batch."""


class Compared(NamedTuple):
    """An output, compared with its targets."""

    loss: Tensor
    weight: float
    counted: float
    targets: Tree
    """On the output's device."""

    @property
    def share(self) -> float:
        """The weight as a share of the samples: 1, where all targets count."""
        return self.weight / len(main(self.targets))


@define(eq=False, slots=False)
class HeadRunner(SegmentRunner):
    """The head and the loss behind it; the gradient of the head's input waits for the backward."""

    loss: Loss = field(kw_only=True)
    pending: InFlight[Reversed] = field(factory=InFlight, init=False)
    measures: bool = field(default=True, init=False)
    """Whether the metrics of training micro-batches are computed."""
    _one: Tensor | None = field(default=None, init=False)
    """The gradient of a loss whose targets all count."""

    def forward_backward(self, micro_batch: int, inputs: Streams, target: Tree) -> HeadResult:
        """Run forward and loss, and differentiate both."""
        leaves = self.leaves(inputs)
        output = self.returned(self.run(micro_batch, leaves))
        loss, weight, counted, targets = self.compare(micro_batch, output, target)
        samples = len(main(targets))
        share = self._one
        if weight != samples or share is None or share.dtype != loss.dtype:
            share = torch.full_like(loss, weight / samples)
            if weight == samples:
                self._one = share
        gradients = self.differentiate([loss], (share,), leaves)
        self.pending.append((micro_batch, Reversed(inputs, gradients)))
        metrics = self._metrics(mapped(Tensor.detach, output), targets) if self.measures else {}
        return HeadResult(
            micro_batch=micro_batch,
            samples=samples,
            weight=weight,
            counted=counted,
            loss=loss.detach(),
            metrics=metrics,
        )

    def backward(self, micro_batch: int, outputs: Streams | None, gradients: Streams) -> Reversed:
        """Return the gradients of the micro-batch's `forward_backward`."""
        return self.pending.take(micro_batch)

    def kept(self) -> list[tuple[int, EncodedTensors]]:
        """Return nothing: a cut falls where the head has nothing in flight."""
        assert not self.pending
        return []

    def eval_step(self, inputs: Streams, target: Tree) -> HeadResult:
        """Evaluate the head and the loss, without a graph."""
        output = self.returned(self.run(None, inputs))
        loss, weight, counted, targets = self.compare(None, output, target)
        return HeadResult(
            micro_batch=-1,
            samples=len(main(targets)),
            weight=weight,
            counted=counted,
            loss=loss,
            metrics=self._metrics(output, targets),
            evaluated=Evaluated(outputs=main(output), targets=targets),
        )

    def returned(self, streams: Streams) -> Tree:
        """Return what the network returned, of which these are the tensors."""
        (head,) = self.modules.values()
        return cast(Head, head).returned(streams)

    def compare(self, micro_batch: int | None, output: Tree, target: Tree) -> Compared:
        """Compute the loss, a scalar, with random numbers of its own; `micro_batch` as in `run`."""
        device = main(output).device
        beside = mapped(lambda one: one.to(device, non_blocking=device.type == "cuda"), target)
        with self.numerics.draws(self._name, micro_batch), self._behind:
            weight = target_weight(self.loss, target)
            counted = target_count(self.loss, target, weight)
            return Compared(mean_loss(self.loss, output, beside, weight), weight, counted, beside)

    def _metrics(self, output: Tree, targets: Tree) -> Mapping[str, Tensor]:
        with torch.no_grad(), self._behind:
            return self.loss.metrics(output, targets)

    @cached_property
    def _name(self) -> str:
        return f"the loss behind {next(iter(self.modules))}"

    @cached_property
    def _behind(self) -> placed:
        return placed(f'behind node "{next(iter(self.modules))}"')
