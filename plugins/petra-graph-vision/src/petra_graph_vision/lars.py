"""LARS, which is our own class, as neither torch nor torchvision has one.

Source: You, Gitman and Ginsburg 2017, "Large batch training of convolutional networks", arXiv:1708.03888,
algorithm 1. As there, the learning rate enters the momentum, so a change of the rate leaves the momentum as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import torch

from petra_graph.catalog.optimizers.torch_optimizers import Decay, Momentum, Rate, Unmarked
from petra_graph.plugins import GreaterThan, ParameterGroups

# w parameter, g its gradient, wd weight decay, m momentum, v velocity


class Lars(Unmarked):
    """v <- m v + lr * ratio * (g + wd w); w <- w - v, with ratio = trust * |w| / (|g| + wd |w|) for each tensor.

    The ratio is 1 where it would be 0 or undefined (a norm is 0), and in groups with `adapt` unset.
    """

    def __init__(self, params: Iterable[dict[str, Any]], *, lr: float, momentum: float, trust: float) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "trust": trust, "weight_decay": 0.0, "adapt": True})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no caller passes a closure
        """Update every parameter that has a gradient, once."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, w: torch.Tensor, g: torch.Tensor, group: dict[str, Any]) -> None:
        wd = group["weight_decay"]
        delta = g.add(w, alpha=wd) if wd else g
        if group["adapt"]:
            size_w, size_g = torch.linalg.vector_norm(w), torch.linalg.vector_norm(g)
            below = size_g + wd * size_w
            ratio = group["trust"] * size_w / below
            # torch.where, not `if`: a test on a CUDA value would make the CPU wait for it.
            delta = delta * torch.where((size_w > 0) & (below > 0), ratio, torch.ones_like(ratio))
        v = self.state[w].get("momentum")
        if v is None:
            v = self.state[w]["momentum"] = torch.zeros_like(w)
        v.mul_(group["momentum"]).add_(delta, alpha=group["lr"])
        w.sub_(v)


def lars(
    groups: ParameterGroups,
    *,
    lr: Rate = 1.0,
    momentum: Momentum = 0.9,
    trust: Annotated[
        float, "the paper's eta: the length of a step as a share of the tensor's norm", GreaterThan(0)
    ] = 0.001,
    weight_decay: Decay = 0.0,
) -> torch.optim.Optimizer:
    """Momentum with a learning rate for each tensor, in proportion to its norm, for large batches.

    Normalisation parameters and biases have plain momentum, without trust ratio.
    """
    decayed, undecayed = groups.param_groups(weight_decay=weight_decay)
    parameters = [decayed | {"adapt": True}, undecayed | {"adapt": False}]
    return Lars(parameters, lr=lr, momentum=momentum, trust=trust)
