"""torch's own optimizers, without its marks for `torch.compile`: the same steps and state.

Functions that a compiler must skip import `torch._dynamo` when they are first called, which takes more than half as long as the
import of torch. A run that compiles nothing needs none of it, and optimizers are never compiled here. `inspect.unwrap` returns the functions as torch's
authors wrote them.

Weight decay applies to all parameters but biases and those of a normalisation (Goyal et al. 2017, section 5.3).
"""

from __future__ import annotations

from inspect import unwrap
from typing import Annotated

import torch

from petra_graph.plugins import AtLeast, AtMost, GreaterThan, LessThan, ParameterGroups, StageFacts

_LARGEST = AtMost(1e30)
"""Of a factor of steps: some products of a larger one have no place in float32."""
_Share = Annotated[float, AtLeast(0), LessThan(1)]
Rate = Annotated[float, "base learning rate; schedule and scaling multiply it", AtLeast(0), _LARGEST]
Momentum = Annotated[_Share, "share of the last step that is kept"]
Nesterov = Annotated[bool, "look ahead along the momentum, which must be above 0"]
Betas = Annotated[tuple[_Share, _Share], "share of the mean gradient, and of its mean square, that is kept"]
Eps = Annotated[float, "added to the root of the mean square", GreaterThan(0), _LARGEST]
Decay = Annotated[float, "weight decay, none on normalisation and biases", AtLeast(0), _LARGEST]
LARGEST_BETA1 = 0.99
"""Of NAdam by stage: where the delay is largest."""


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


def expect_momentum(momentum: float, *, nesterov: bool) -> None:
    """Refuse Nesterov momentum without momentum."""
    if nesterov and not momentum:
        raise ValueError("nesterov = true needs a momentum above 0 (got momentum = 0); set nesterov = false")


def sgd(
    groups: ParameterGroups,
    *,
    lr: Rate = 0.1,
    momentum: Momentum = 0.9,
    nesterov: Nesterov = True,
    weight_decay: Decay = 0.0,
) -> torch.optim.Optimizer:
    """Stochastic gradient descent with (Nesterov) momentum."""
    expect_momentum(momentum, nesterov=nesterov)
    parameters = groups.param_groups(weight_decay=weight_decay)
    return SGD(parameters, lr=lr, momentum=momentum, nesterov=nesterov, fused=_on_gpus(groups))


def adam(
    groups: ParameterGroups, *, lr: Rate = 1e-3, betas: Betas = (0.9, 0.999), eps: Eps = 1e-8, weight_decay: Decay = 0.0
) -> torch.optim.Optimizer:
    """Adam, weight decay added to the gradient, and so scaled with it (AdamW's is not); Kingma and Ba 2015, arXiv:1412.6980."""
    parameters = groups.param_groups(weight_decay=weight_decay)
    return Adam(parameters, lr=lr, betas=betas, eps=eps, fused=_on_gpus(groups))


def adamw(
    groups: ParameterGroups,
    *,
    lr: Rate = 1e-3,
    betas: Betas = (0.9, 0.999),
    eps: Eps = 1e-8,
    weight_decay: Decay = 0.01,
) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay, which shrinks parameters by lr * weight_decay; Loshchilov and Hutter 2019, arXiv:1711.05101."""
    parameters = groups.param_groups(weight_decay=weight_decay)
    return AdamW(parameters, lr=lr, betas=betas, eps=eps, fused=_on_gpus(groups))


def _on_gpus(groups: ParameterGroups) -> bool | None:
    """Whether a step may be a kernel a group, as all parameters are on GPUs; else torch decides."""
    return all(one.is_cuda for one in (*groups.decayed, *groups.undecayed)) or None


def nadam(
    groups: ParameterGroups,
    *,
    lr: Rate = 2e-3,
    betas: Betas = (0.9, 0.999),
    eps: Eps = 1e-8,
    weight_decay: Decay = 0.0,
    momentum_decay: Annotated[
        float, "how fast the momentum rises from half its value: by 0.96 ** (u * momentum_decay)", AtLeast(0)
    ] = 0.004,
    beta1_by_stage: Annotated[bool, "raise the first beta towards 0.99 with the stage's delay"] = False,
    stage: StageFacts | None = None,
) -> torch.optim.Optimizer:
    """Adam with Nesterov momentum and decoupled weight decay (Dozat 2016).

    With betas = [0.99, 0.999] it is the optimizer of asynchronous pipelines of Ajanthan et al. 2025 (arXiv:2505.01099). By stage, as their
    code has it, beta1 is m + (n - 1) (0.99 - m) / S, with m the options' own, S stages, and n versions of the parameters between a forward
    and its backward. Here n - 1 is the stage's delay in updates with a full pipeline, at most S: deeper schedules than theirs, as
    `lockstep`, have more.
    """
    first, second = betas
    if beta1_by_stage and first > LARGEST_BETA1:
        at_most = f"needs a first beta of at most {LARGEST_BETA1} (got {first})"
        raise ValueError(f"beta1_by_stage = true {at_most}; set it to false")
    if beta1_by_stage and stage is not None:
        first += min(1.0, stage.steady / stage.stages) * (LARGEST_BETA1 - first)
    return NAdam(
        groups.param_groups(weight_decay=weight_decay),
        lr=lr,
        betas=(first, second),
        eps=eps,
        momentum_decay=momentum_decay,
        decoupled_weight_decay=True,
    )
