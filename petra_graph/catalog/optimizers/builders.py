"""Optimizers over a stage's groups of parameters: torch's own, LARS, or those of matrices.

Source of LARS: You, Gitman and Ginsburg 2017, "Large batch training of convolutional networks", arXiv:1708.03888,
algorithm 1. As there, the learning rate enters the momentum, so a change of the rate leaves the momentum as it is.

Decision: LARS is our own class, as neither torch nor torchvision has one.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any

import torch

from petra_graph.catalog.optimizers.declared_optimizers import (
    LARGEST_BETA1,
    AdamOptions,
    AdamWOptions,
    LarsOptions,
    MuonOptions,
    NadamOptions,
    SgdOptions,
    SoapOptions,
)
from petra_graph.catalog.optimizers.matrix_optimizer import groups_with_matrices
from petra_graph.catalog.optimizers.muon import Muon
from petra_graph.catalog.optimizers.soap import Soap
from petra_graph.catalog.optimizers.torch_optimizers import SGD, Adam, AdamW, NAdam, Unmarked
from petra_graph.plugins import ParameterGroups


def sgd(groups: ParameterGroups, options: SgdOptions) -> torch.optim.Optimizer:
    """Build `torch.optim.SGD`."""
    parameters = groups.param_groups(weight_decay=options.weight_decay)
    same: dict[str, Any] = {"lr": options.lr, "momentum": options.momentum, "nesterov": options.nesterov}
    return SGD(parameters, **same, **_fused(groups))


def adam(groups: ParameterGroups, options: AdamOptions) -> torch.optim.Optimizer:
    """Build `torch.optim.Adam` (arXiv:1412.6980), or from `AdamWOptions` `torch.optim.AdamW` (arXiv:1711.05101)."""
    first, second = options.betas
    parameters = groups.param_groups(weight_decay=options.weight_decay)
    same: dict[str, Any] = {"lr": options.lr, "betas": (first, second), "eps": options.eps, **_fused(groups)}
    if isinstance(options, AdamWOptions):
        return AdamW(parameters, **same)
    return Adam(parameters, **same)


def _fused(groups: ParameterGroups) -> dict[str, Any]:
    """Return the option by which a step is a kernel a group, if all parameters are on GPUs."""
    return {"fused": True} if all(one.is_cuda for one in (*groups.decayed, *groups.undecayed)) else {}


def nadam(groups: ParameterGroups, options: NadamOptions, stage: Any = None) -> torch.optim.Optimizer:
    """Build `torch.optim.NAdam` (Dozat 2016) with decoupled weight decay.

    By stage, as the code of Ajanthan et al. 2025 has it, beta1 is m + (n - 1) (0.99 - m) / S, with m the options' own, S stages,
    and n versions of the parameters between a forward and its backward. Here n - 1 is the stage's delay in updates with a full
    pipeline, at most S: deeper schedules than theirs, as `lockstep`, have more.
    """
    first, second = options.betas
    if options.beta1_by_stage and stage is not None:
        first += min(1.0, stage.steady / stage.stages) * (LARGEST_BETA1 - first)
    return NAdam(
        groups.param_groups(weight_decay=options.weight_decay),
        lr=options.lr,
        betas=(first, second),
        eps=options.eps,
        momentum_decay=options.momentum_decay,
        decoupled_weight_decay=True,
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
    """Build `Lars`; normalisation parameters and biases have plain momentum, without trust ratio."""
    decayed, undecayed = groups.param_groups(weight_decay=options.weight_decay)
    parameters = [decayed | {"adapt": True}, undecayed | {"adapt": False}]
    return Lars(parameters, lr=options.lr, momentum=options.momentum, trust=options.trust)


def muon(groups: ParameterGroups, options: MuonOptions) -> torch.optim.Optimizer:
    """Build `Muon`."""
    parameters = groups_with_matrices(
        groups,
        groups.hidden_matrices(),
        weight_decay=options.weight_decay,
        momentum=options.momentum,
        ahead=float(options.nesterov),
        ns_steps=options.ns_steps,
        adjust_lr=options.adjust_lr,
    )
    first, second = options.betas
    return Muon(parameters, lr=options.lr, betas=(first, second), eps=options.eps, decoupled_weight_decay=True)


def soap(groups: ParameterGroups, options: SoapOptions) -> torch.optim.Optimizer:
    """Build `Soap`; a matrix whose sides are both too long for a basis is AdamW's."""
    shortest = {id(one): min(one.flatten(1).shape) for one in groups.decayed if one.dim() > 1}
    parameters = groups_with_matrices(
        groups,
        [one for one in groups.decayed if shortest.get(id(one), inf) <= options.max_precond_dim],
        weight_decay=options.weight_decay,
        precondition_frequency=options.precondition_frequency,
        max_precond_dim=options.max_precond_dim,
    )
    first, second = options.betas
    return Soap(parameters, lr=options.lr, betas=(first, second), eps=options.eps, decoupled_weight_decay=True)
