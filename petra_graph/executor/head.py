"""The head of the network: forward, loss and gradient at once (PETRA algorithm 1, lines 26 to 30 and 35).

What is differentiated is the loss times the share of the targets that count, so that windows and replicas average over targets, and not
over micro-batches. Targets come on the CPU: their weight is known before any device has worked.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, cast

import torch
from attrs import define, field, frozen
from torch import Tensor

from petra_graph.blocks import Head, Reversed, Streams
from petra_graph.errors import placed
from petra_graph.executor.encoded import EncodedTensors
from petra_graph.executor.runners import InFlight, SegmentRunner
from petra_graph.plugins.loss_and_metric import Loss, mean_loss, target_count, target_weight
from petra_graph.plugins.tensor_trees import Tree, is_several, leaves, main, mapped


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
    """Sums over the samples, scalars."""
    output_sum: Tensor | None = None
    """Of a training micro-batch, for a diagnosis: not finite where the head's output is not."""
    evaluated: Evaluated | None = None
    """Of an evaluation batch."""


@frozen(kw_only=True)
class Compared:
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

    def forward_backward(self, micro_batch: int, inputs: Streams, target: Tree) -> HeadResult:
        """Run forward and loss, and differentiate both."""
        own = self.leaves(inputs)
        output = self.returned(self.run(micro_batch, own))
        compared = self.compare(micro_batch, output, target)
        weight = torch.full_like(compared.loss, compared.share)
        gradients = self.differentiate([compared.loss], (weight,), own)
        self.pending.append((micro_batch, Reversed(inputs, gradients)))
        output = mapped(Tensor.detach, output)
        sums = torch.stack([one.sum().float() for one in leaves(output)]).sum() if is_several(output) else output.sum()
        return self._result(micro_batch, output, compared, output_sum=sums)

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
        compared = self.compare(None, output, target)
        evaluated = Evaluated(outputs=main(output), targets=compared.targets)
        return self._result(-1, output, compared, evaluated=evaluated)

    def returned(self, streams: Streams) -> Tree:
        """Return what the network returned, of which these are the tensors."""
        (head,) = self.modules.values()
        return cast(Head, head).returned(streams)

    def compare(self, micro_batch: int | None, output: Tree, target: Tree) -> Compared:
        """Compute the loss, a scalar, with random numbers of its own; `micro_batch` as in `run`."""
        name = f"the loss behind {next(iter(self.modules))}"
        device = main(output).device
        beside = mapped(lambda one: one.to(device, non_blocking=device.type == "cuda"), target)
        with self.numerics.draws(name, micro_batch), self._behind:
            weight = target_weight(self.loss, target)
            counted = target_count(self.loss, target, weight)
            loss = mean_loss(self.loss, output, beside, weight)
        return Compared(loss=loss, weight=weight, counted=counted, targets=beside)

    @cached_property
    def _behind(self) -> placed:
        return placed(f'behind node "{next(iter(self.modules))}"')

    def _result(self, micro_batch: int, output: Tree, compared: Compared, **more: Any) -> HeadResult:
        with torch.no_grad(), self._behind:
            metrics = self.loss.metrics(output, compared.targets)
        return HeadResult(
            micro_batch=micro_batch,
            samples=len(main(compared.targets)),
            weight=compared.weight,
            counted=compared.counted,
            loss=compared.loss.detach(),
            metrics=metrics,
            **more,
        )
