"""Softmax cross-entropy."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from attrs import frozen
from torch.nn import functional

from petra_graph.catalog.losses.declared import CrossEntropyOptions
from petra_graph.catalog.losses.shared import correct, widened


@frozen
class CrossEntropy:
    """Mean over samples of the cross-entropy of logits [n, classes] against class indices, int64 [n]."""

    options: CrossEntropyOptions

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the mean loss, in float32 or wider."""
        return functional.cross_entropy(widened(output), target, label_smoothing=self.options.label_smoothing)

    def metrics(self, output: torch.Tensor, target: torch.Tensor) -> Mapping[str, torch.Tensor]:
        """Return the counts "top1" and "top5"."""
        return correct(output, target)
