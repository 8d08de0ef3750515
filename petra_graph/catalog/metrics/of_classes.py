"""Metrics of predicted classes, of three counts for each class: right, predicted and wanted. Counts do not depend on the batches."""

from __future__ import annotations

import torch

from petra_graph.catalog.metrics.declared_metrics import F1Options
from petra_graph.catalog.metrics.outputs_of_targets import scores_and_classes
from petra_graph.plugins import NoOptions


class _OfClasses:
    def __init__(self, _options: F1Options | NoOptions) -> None:
        self.counts: torch.Tensor | int = 0

    def update(self, output: torch.Tensor, target: torch.Tensor) -> None:
        """Add the counts of a batch, [3, classes]."""
        scores, wanted = scores_and_classes(output, target)
        predicted = scores.argmax(1)
        each = (wanted[predicted == wanted], predicted, wanted)
        self.counts = self.counts + torch.stack([torch.bincount(one, minlength=scores.shape[1]) for one in each])

    def shares(self, weight: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return weight * right / (predicted + wanted + (weight - 2) * right) and the targets of each class that is there."""
        right, predicted, wanted = torch.as_tensor(self.counts).double().unbind()
        there = predicted + wanted > 0
        shares = weight * right / (predicted + wanted + (weight - 2) * right)
        return shares[there], wanted[there]


class F1(_OfClasses):
    """The F1 score: 2 * right / (predicted + wanted) of a class."""

    def __init__(self, options: F1Options) -> None:
        super().__init__(options)
        self.average = options.average

    def compute(self) -> torch.Tensor:
        """Return the average that the options name; NaN without targets."""
        if self.average == "micro":
            right, predicted, wanted = torch.as_tensor(self.counts).double().sum(1).unbind()
            return 2 * right / (predicted + wanted)
        shares, wanted = self.shares(2)
        return shares.mean() if self.average == "macro" else (shares * wanted).sum() / wanted.sum()


class MeanIou(_OfClasses):
    """The mean intersection over union: right / (predicted + wanted - right) of a class."""

    def compute(self) -> torch.Tensor:
        """Return the mean; NaN without targets."""
        return self.shares(1)[0].mean()
