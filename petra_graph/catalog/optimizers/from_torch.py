"""Torch's own optimizers, over a stage's two groups of parameters."""

from __future__ import annotations

from typing import Any

import torch

from petra_graph.catalog.optimizers.declared import AdamOptions, AdamWOptions, SgdOptions
from petra_graph.registry.contracts import ParameterGroups


def sgd(groups: ParameterGroups, options: SgdOptions) -> torch.optim.Optimizer:
    """Build `torch.optim.SGD`."""
    parameters = two_groups(groups, options.weight_decay)
    return torch.optim.SGD(parameters, lr=options.lr, momentum=options.momentum, nesterov=options.nesterov)


def adam(groups: ParameterGroups, options: AdamOptions) -> torch.optim.Optimizer:
    """Build `torch.optim.Adam` (Kingma and Ba 2015, arXiv:1412.6980)."""
    parameters = two_groups(groups, options.weight_decay)
    first, second = options.betas
    return torch.optim.Adam(parameters, lr=options.lr, betas=(first, second), eps=options.eps)


def adamw(groups: ParameterGroups, options: AdamWOptions) -> torch.optim.Optimizer:
    """Build `torch.optim.AdamW` (Loshchilov and Hutter 2019, arXiv:1711.05101)."""
    parameters = two_groups(groups, options.weight_decay)
    first, second = options.betas
    return torch.optim.AdamW(parameters, lr=options.lr, betas=(first, second), eps=options.eps)


def two_groups(groups: ParameterGroups, weight_decay: float) -> list[dict[str, Any]]:
    """Return torch's parameter groups: the decayed parameters, then the others. Either may be empty."""
    return [
        {"params": list(groups.decayed), "weight_decay": weight_decay},
        {"params": list(groups.undecayed), "weight_decay": 0.0},
    ]
