"""torch's own optimizers, without its marks for `torch.compile`: the same steps and state.

Functions that a compiler must skip import `torch._dynamo` when they are first called, which takes more than half as long as the
import of torch. A run that compiles nothing needs none of it, and optimizers are never compiled here. `inspect.unwrap` returns the functions as torch's
authors wrote them.
"""

from __future__ import annotations

from inspect import unwrap
from typing import Any

import torch

from petra_graph.catalog.optimizers.declared_optimizers import (
    LARGEST_BETA1,
    AdamOptions,
    AdamWOptions,
    NadamOptions,
    SgdOptions,
)
from petra_graph.plugins import ParameterGroups


class Unmarked(torch.optim.Optimizer):
    """Methods of all optimizers."""

    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = unwrap(torch.optim.Optimizer.load_state_dict)


class SGD(Unmarked, torch.optim.SGD):
    step = torch.no_grad()(unwrap(torch.optim.SGD.step))


class Adam(Unmarked, torch.optim.Adam):
    step = torch.no_grad()(unwrap(torch.optim.Adam.step))


class AdamW(Adam, torch.optim.AdamW):
    pass


class NAdam(Unmarked, torch.optim.NAdam):
    step = torch.no_grad()(unwrap(torch.optim.NAdam.step))


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
