"""`perplexity`, of scores of classes in any arrangement: each target that is not passed over has a row of scores."""

from __future__ import annotations

import torch
from torch.nn import functional

_PASSED_OVER = -100


class Perplexity:
    """Exponential of the mean cross-entropy of the targets: how many equally likely classes a network seems to choose from."""

    better = "lower"

    def __init__(self) -> None:
        self.total: torch.Tensor | float = 0.0
        self.targets = 0

    def update(self, output: torch.Tensor, target: torch.Tensor) -> None:
        """Add a batch, outputs [n, classes, *] or [n, *, classes] and classes [n, *], of which -100 are passed over; the sum is in float64."""
        if target.is_floating_point():  # would be cut to classes
            raise ValueError(f"targets must be class indices (got {target.dtype})")
        scores = output.movedim(1, -1) if target.shape == output.shape[:1] + output.shape[2:] else output
        counted = target != _PASSED_OVER
        each = functional.cross_entropy(scores[counted].float(), target[counted].long(), reduction="none")
        self.total = self.total + each.double().sum()
        self.targets += len(each)

    def compute(self) -> torch.Tensor:
        """Return the perplexity: infinite from a cross-entropy of 710 on; NaN without targets."""
        return torch.exp(torch.as_tensor(self.total, dtype=torch.float64) / self.targets)
