"""`perplexity`, and how metrics read scores of classes: each target that is not passed over has a row of scores, in any arrangement of the outputs."""

from __future__ import annotations

import torch
from torch.nn import functional

_PASSED_OVER = -100


def scores_and_classes(output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scores [m, classes] and the classes, int64 [m], of the targets that are not -100.

    Args:
        output: [n, classes, *], or [n, *, classes].
        target: class indices [n, *].

    Raises:
        ValueError: they are not of these shapes, or a target is not a class.
    """
    second = output.shape[:1] + output.shape[2:]
    if target.is_floating_point() or output.dim() < 2 or target.shape not in {second, output.shape[:-1]}:  # noqa: PLR2004
        shapes = f"outputs {list(output.shape)}, targets {list(target.shape)} of {target.dtype}"
        raise ValueError(f"it needs outputs [n, classes, ...] and class indices [n, ...] (got {shapes})")
    scores = (output.movedim(1, -1) if target.shape == second else output).flatten(0, -2)
    classes = target.flatten().long()
    counted = classes != _PASSED_OVER
    scores, classes = scores[counted], classes[counted]
    if len(classes) and not 0 <= int(classes.min()) <= int(classes.max()) < scores.shape[1]:
        found = f"{int(classes.min())}..{int(classes.max())}"
        raise ValueError(f"targets must be classes 0..{scores.shape[1] - 1}, or -100 (got {found})")
    return scores, classes


class Perplexity:
    """Exponential of the mean cross-entropy of the targets: how many equally likely classes a network seems to choose from."""

    better = "lower"

    def __init__(self) -> None:
        self.total: torch.Tensor | float = 0.0
        self.targets = 0

    def update(self, output: torch.Tensor, target: torch.Tensor) -> None:
        """Add a batch; the sum is in float64."""
        scores, classes = scores_and_classes(output, target)
        self.total = self.total + functional.cross_entropy(scores.float(), classes, reduction="none").double().sum()
        self.targets += len(classes)

    def compute(self) -> torch.Tensor:
        """Return the perplexity: infinite from a cross-entropy of 710 on; NaN without targets."""
        if not self.targets:
            return torch.tensor(torch.nan)
        return torch.exp(torch.as_tensor(self.total, dtype=torch.float64) / self.targets)
