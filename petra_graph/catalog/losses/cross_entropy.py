"""Softmax cross-entropy."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from attrs import frozen
from torch.nn import functional

from petra_graph.catalog.losses.accuracy import correct
from petra_graph.catalog.losses.declared import CrossEntropyOptions
from petra_graph.catalog.losses.precision import widened
from petra_graph.registry.contracts import Loss


@frozen(kw_only=True)
class CrossEntropy:
    """Mean over samples of the cross-entropy of logits [n, classes] against class indices, int64 [n]."""

    label_smoothing: float

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the mean loss, in float32 or wider."""
        return functional.cross_entropy(widened(output), target, label_smoothing=self.label_smoothing)

    def metrics(self, output: torch.Tensor, target: torch.Tensor) -> Mapping[str, torch.Tensor]:
        """Return the counts "top1" and "top5"."""
        return correct(output, target)


def cross_entropy(options: CrossEntropyOptions) -> Loss:
    """Build the loss."""
    return CrossEntropy(label_smoothing=options.label_smoothing)
