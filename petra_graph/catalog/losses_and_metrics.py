"""The losses as functions of an output, with their counts for evaluation; and perplexity."""

from __future__ import annotations

from typing import Annotated

import torch
from numpy import count_nonzero
from torch.nn import functional

from petra_graph.plugins import AtLeast, LessThan, correct
from petra_graph.plugins.data_set import IGNORED

Smoothing = Annotated[float, "share spread over all classes", AtLeast(0), LessThan(1)]


class CrossEntropy:
    """Mean cross-entropy of logits against class indices; counts top-1 and, of more than five classes, top-5.

    Logits [n, classes, *], class indices int64 [n, *]. Targets of -100 are passed over: a sample's weight is the share of its other targets.
    Targets of mixed samples are the shares of the classes, float [n, classes].
    """

    logits = True

    def __init__(self, *, label_smoothing: Smoothing = 0.0) -> None:
        self.label_smoothing = label_smoothing

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        output, smoothing = widened(output), self.label_smoothing
        if target.is_floating_point():
            target = target.to(output.dtype)
        elif target.dim() > 1 and output.is_cuda:
            # On a GPU torch adds up several targets a sample in any order, and refuses to where runs are to have the same bits.
            each = functional.cross_entropy(output, target, label_smoothing=smoothing, reduction="none")
            return each.sum() / (target != IGNORED).sum()
        return functional.cross_entropy(output, target, label_smoothing=smoothing)

    def target_weight(self, target: torch.Tensor) -> float:
        """Return the sum over the samples of their shares of targets that are not passed over."""
        return float(count_nonzero(target.numpy() != IGNORED)) / max(1, target.shape[1:].numel())

    target_count = target_weight
    metrics = staticmethod(correct)  # of shares of the classes as well, as mixed samples have them


def mean_squared_error(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean squared error against targets of the output's shape, or against class indices as one-hot vectors."""
    output = widened(output)
    if not target.is_floating_point() and target.ndim == output.ndim - 1 == 1:
        target = functional.one_hot(target, output.shape[1])
    if output.shape != target.shape:  # torch would broadcast
        shapes = f"output {list(output.shape)}, target {list(target.shape)}"
        raise ValueError(f"mean-squared-error needs an output and a target of one shape (got {shapes})")
    return functional.mse_loss(output, target.to(output.dtype))


def widened(output: torch.Tensor) -> torch.Tensor:
    """Return float64 as it is and any narrower type as float32: a mean over samples in bfloat16 keeps three digits."""
    return output if output.dtype == torch.float64 else output.float()


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
        counted = target != IGNORED
        each = functional.cross_entropy(scores[counted].float(), target[counted].long(), reduction="none")
        self.total = self.total + each.double().sum()
        self.targets += len(each)

    def compute(self) -> torch.Tensor:
        """Return the perplexity: infinite from a cross-entropy of 710 on; NaN without targets."""
        return torch.exp(torch.as_tensor(self.total, dtype=torch.float64) / self.targets)
