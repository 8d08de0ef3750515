"""What an update takes from each parameter, for the corrections that keep it.

Without delay, the base optimizer makes the step, which so has its bits: it is measured by what it changed, in the memory in which it is kept.
With delay, the steps of SGD and Adam are made here, in about as many passes over the parameters as torch's, and nothing has to
be compared: a step takes scale * direction.

    SGD         v, or with Nesterov momentum g + m v                                  scale lr
    Adam        first / (sqrt(second) + eps root)                                     scale lr f, f = root / (1 - beta1^t)
    AdamW       the same, and wd / f times p                                          root = sqrt(1 - beta2^t)

Any other optimizer's step is measured: part by part where each parameter is stepped by itself, so that no copy of all parameters is needed.

Limit: a step that is measured is rounded as the parameters are; one that is made here is rounded otherwise than torch's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from attrs import frozen
from torch import Tensor

from petra_graph_delay.known_optimizers import (
    adam_moments,
    adam_parameters,
    chunked,
    is_adam,
    is_sgd,
    sgd_moments,
    steps_by_parameter,
    with_gradients,
)
from petra_graph_delay.optimizer_wrapper import OptimizerWrapper

# p parameter, g gradient, v momentum buffer, m momentum, wd weight decay, t steps so far


@frozen
class LateSteps:
    """The steps of some parameters of one group."""

    group: dict[str, Any]
    p: list[Tensor]
    directions: list[Tensor]
    """New tensors, or the optimizer's own state."""
    scales: list[float]
    taken: bool
    """Whether the parameters have made the step."""
    own: bool
    """Whether the directions are new tensors."""

    def take(self, more: Sequence[float]) -> None:
        """Make the steps, if they are not made, and so much of each again."""
        shares = [one + (not self.taken) for one in more]
        if any(shares):
            add_scaled(self.p, self.directions, [-share * s for share, s in zip(shares, self.scales, strict=True)])


def add_scaled(p: list[Tensor], others: list[Tensor], scales: Sequence[float]) -> None:
    """Add scale * other to each tensor."""
    if len(set(scales)) == 1:
        torch._foreach_add_(p, others, alpha=scales[0])
        return
    for one, other, scale in zip(p, others, scales, strict=True):
        one.add_(other, alpha=scale)


def added(p: list[Tensor], others: list[Tensor], scales: Sequence[float]) -> list[Tensor]:
    """Return p + scale * other of each tensor."""
    if len(set(scales)) == 1:
        return list(torch._foreach_add(p, others, alpha=scales[0]))  # noqa: SLF001  torch names it so
    return [one.add(other, alpha=scale) for one, other, scale in zip(p, others, scales, strict=True)]


def undelayed(optimizer: torch.optim.Optimizer, kept: str) -> None:
    """Make the step of an optimizer, and keep under a name of the state what it took, of scale 1."""
    moving = [one for group in optimizer.param_groups for one in with_gradients(group)]
    before = [cast("Tensor", optimizer.state.get(one, {}).get(kept, torch.empty_like(one))) for one in moving]
    if moving:
        torch._foreach_copy_(before, moving)
    optimizer.step()
    if moving:
        torch._foreach_sub_(before, moving)
    for one, taken in zip(moving, before, strict=True):
        optimizer.state[one] |= {kept: taken, scale_of(kept): 1.0}


def scale_of(kept: str) -> str:
    """Return the name of the scale in the state of a parameter, beside that of a direction."""
    return f"{kept}_scale"


def late_steps(optimizer: torch.optim.Optimizer) -> Iterator[LateSteps]:
    """Yield the steps of one update of an optimizer."""
    if is_sgd(optimizer):
        return _sgd_steps(optimizer)
    if is_adam(optimizer):
        return _adam_steps(cast("torch.optim.Adam", optimizer))
    innermost = optimizer.wrapped if isinstance(optimizer, OptimizerWrapper) else optimizer
    return _measured_by_part(optimizer) if steps_by_parameter(innermost) else _measured(optimizer)


def _measured(optimizer: torch.optim.Optimizer) -> Iterator[LateSteps]:
    """Step once, and compare parameters."""
    moving = [with_gradients(group) for group in optimizer.param_groups]
    took = [[one.detach().clone() for one in p] for p in moving]
    optimizer.step()
    for group, p, directions in zip(optimizer.param_groups, moving, took, strict=True):
        if p:
            torch._foreach_sub_(directions, p)
            yield LateSteps(group, p, directions, [1.0] * len(p), taken=True, own=True)


def _measured_by_part(optimizer: torch.optim.Optimizer) -> Iterator[LateSteps]:
    """Step part by part, and compare parameters."""
    groups = optimizer.param_groups
    try:
        for group in groups:
            moving = with_gradients(group)
            for part in chunked(group, moving):
                p = moving[part]
                optimizer.param_groups = [group | {"params": p}]
                took = [one.detach().clone() for one in p]
                optimizer.step()
                torch._foreach_sub_(took, p)
                yield LateSteps(group, p, took, [1.0] * len(p), taken=True, own=True)
    finally:
        optimizer.param_groups = groups


def _sgd_steps(optimizer: torch.optim.Optimizer) -> Iterator[LateSteps]:
    for group in optimizer.param_groups:
        m, wd = group["momentum"], group["weight_decay"]
        moving = with_gradients(group)
        for part in chunked(group, moving):
            p = moving[part]
            if m:
                g, v = sgd_moments(optimizer, p, group)
                directions = list(torch._foreach_add(g, v, alpha=m)) if group["nesterov"] else v  # noqa: SLF001  torch names it so
            else:
                directions = [one.grad.add(one, alpha=wd) for one in p]  # type: ignore[union-attr]
            own = group["nesterov"] or not m
            yield LateSteps(group, p, directions, [group["lr"]] * len(p), taken=False, own=own)


def _adam_steps(optimizer: torch.optim.Adam) -> Iterator[LateSteps]:
    for group in optimizer.param_groups:
        parameters = adam_parameters(optimizer, group)
        for part in chunked(group, parameters):
            p = parameters[part]
            now = adam_moments(optimizer, p, group)
            directions = list(torch._foreach_div(now.first, now.below))  # noqa: SLF001
            if group["weight_decay"] and group["decoupled_weight_decay"]:
                add_scaled(directions, p, [group["weight_decay"] / factor for factor in now.factors])
            yield LateSteps(group, p, directions, [group["lr"] * one for one in now.factors], taken=False, own=True)
