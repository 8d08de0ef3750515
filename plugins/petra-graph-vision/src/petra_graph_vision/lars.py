"""LARS, which is our own class, as neither torch nor torchvision has one.

Source: You, Gitman and Ginsburg 2017, "Large batch training of convolutional networks", arXiv:1708.03888,
algorithm 1. As there, the learning rate enters the momentum, so a change of the rate leaves the momentum as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from attrs import frozen

from petra_graph.catalog.optimizers.torch_optimizers import Unmarked
from petra_graph.plugins import AtLeast, AtMost, GreaterThan, LessThan, ParameterGroups, option


@frozen(kw_only=True)
class LarsOptions:
    """Momentum with a learning rate for each tensor, in proportion to its norm, for large batches.

    Each decayed tensor's step is in proportion to its own norm.
    """

    lr: float = option(
        "base learning rate; schedule and scaling multiply it", default=1.0, validator=[AtLeast(0), AtMost(1e30)]
    )
    momentum: float = option("share of the last step that is kept", default=0.9, validator=[AtLeast(0), LessThan(1)])
    trust: float = option(
        "the paper's eta: the length of a step as a share of the tensor's norm", default=0.001, validator=GreaterThan(0)
    )
    weight_decay: float = option(
        "weight decay, none on normalisation and biases", default=0.0, validator=[AtLeast(0), AtMost(1e30)]
    )


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


def lars(groups: ParameterGroups, options: LarsOptions) -> torch.optim.Optimizer:
    """Momentum with a learning rate for each tensor, in proportion to its norm, for large batches.

    Normalisation parameters and biases have plain momentum, without trust ratio.
    """
    decayed, undecayed = groups.param_groups(weight_decay=options.weight_decay)
    parameters = [decayed | {"adapt": True}, undecayed | {"adapt": False}]
    return Lars(parameters, lr=options.lr, momentum=options.momentum, trust=options.trust)
