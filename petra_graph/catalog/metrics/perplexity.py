"""Perplexity: how many equally likely classes a network seems to choose from."""

from __future__ import annotations

import torch
from torch.nn import functional

from petra_graph.catalog.metrics.outputs_of_targets import scores_and_classes
from petra_graph.plugins import NoOptions


class Perplexity:
    """The sum of the cross-entropies, and the number of targets."""

    def __init__(self, _options: NoOptions) -> None:
        self.total: torch.Tensor | float = 0.0
        self.targets = 0

    def update(self, output: torch.Tensor, target: torch.Tensor) -> None:
        """Add a batch; the sum is in float64."""
        scores, classes = scores_and_classes(output, target)
        self.total = self.total + functional.cross_entropy(scores.float(), classes, reduction="none").double().sum()
        self.targets += len(classes)

    def compute(self) -> torch.Tensor:
        """Return the perplexity: infinite from a cross-entropy of 710 on; NaN without targets."""
        return (
            torch.exp(torch.as_tensor(self.total, dtype=torch.float64) / self.targets)
            if self.targets
            else torch.tensor(torch.nan)
        )
