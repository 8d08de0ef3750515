"""Mean squared error."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from attrs import frozen
from torch.nn import functional

from petra_graph.catalog.losses.shared import correct, widened
from petra_graph.registry.contracts import NoOptions


@frozen
class MeanSquaredError:
    """Mean of the squared differences over all elements, and so over samples.

    Targets are of the output's shape, or class indices int64 [n] against outputs [n, classes], which stand for one-hot
    vectors.
    """

    options: NoOptions

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the mean loss, in float32 or wider.

        Raises:
            ValueError: the shapes do not fit.
        """
        output = widened(output)
        if _are_classes(output, target):
            target = functional.one_hot(target, output.shape[1])
        if output.shape != target.shape:  # torch would broadcast
            shapes = f"output {list(output.shape)}, target {list(target.shape)}"
            raise ValueError(f"mean-squared-error needs an output and a target of one shape (got {shapes})")
        return functional.mse_loss(output, target.to(output.dtype))

    def metrics(self, output: torch.Tensor, target: torch.Tensor) -> Mapping[str, torch.Tensor]:
        """Return the counts "top1" and "top5" where targets are classes, else nothing."""
        return correct(output, target) if _are_classes(output, target) else {}


def _are_classes(output: torch.Tensor, target: torch.Tensor) -> bool:
    return not target.is_floating_point() and target.ndim == output.ndim - 1 == 1
