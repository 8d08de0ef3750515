"""The steps of torch's SGD and Adam as scale * direction, for corrections that keep them or make them otherwise.

    SGD         v <- m v + g, taken as v, or with Nesterov momentum as g + m v              scale lr
    Adam        first <- beta1 first + (1 - beta1) g,  second <- beta2 second + (1 - beta2) g^2
                taken as first / (sqrt(second) + eps root)                                  scale lr f, f = root / (1 - beta1^t)
    AdamW       the same, and wd / f times p                                                root = sqrt(1 - beta2^t)

A step of Muon, or one that another correction has made, is measured: part by part, so that no copy of all parameters is needed. Without delay,
the optimizer makes the step, which so has its bits: it is measured by what it changed, in the memory in which it is kept.

Limit: a step that is measured is rounded as the parameters are; one that is made here is rounded otherwise than torch's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from attrs import frozen
from torch import Tensor

from petra_graph.catalog.optimizers import Muon

# m momentum or beta1, g gradient, v momentum buffer, p parameter, wd weight decay, t steps so far

_CACHED = 2**16
"""Elements of the parameters that a processor takes together; with gradients and state, a MiB in float32."""


def chunked(group: dict[str, Any], parameters: Sequence[Tensor]) -> Iterator[slice]:
    """Yield which parameters torch's kernels of many tensors take together.

    All, where these kernels are fused, as on CUDA; otherwise as many as stay in a processor's cache over the passes of a step.
    """
    at_once = group.get("foreach")
    if at_once is None:
        at_once = bool(parameters) and parameters[0].is_cuda
    first, elements = 0, 0
    for index, parameter in enumerate(parameters):
        if elements and not at_once and elements + parameter.numel() > _CACHED:
            yield slice(first, index)
            first, elements = index, 0
        elements += parameter.numel()
    if parameters:
        yield slice(first, len(parameters))


def with_gradients(group: dict[str, Any]) -> list[Tensor]:
    """Return the parameters of a group that have one."""
    return [parameter for parameter in group["params"] if parameter.grad is not None]


def sgd_moments(
    optimizer: torch.optim.Optimizer, p: list[Tensor], group: dict[str, Any]
) -> tuple[list[Tensor], list[Tensor]]:
    """Advance the momentum buffers of SGD with momentum; return the gradients with weight decay, and the buffers."""
    m, wd = group["momentum"], group["weight_decay"]
    g = [cast("Tensor", parameter.grad) for parameter in p]
    g = list(torch._foreach_add(g, p, alpha=wd)) if wd else g  # noqa: SLF001  torch names it so
    for one in p:
        if "momentum_buffer" not in optimizer.state[one]:
            optimizer.state[one]["momentum_buffer"] = torch.zeros_like(one)
    v = [optimizer.state[one]["momentum_buffer"] for one in p]
    if v and v[0].is_cuda:
        torch._foreach_mul_(v, m)
        torch._foreach_add_(v, g)
    else:  # in one pass, which pays for the spike's second share
        for velocity, gradient in zip(v, g, strict=True):
            torch.add(gradient, velocity, alpha=m, out=velocity)
    return g, v


@frozen
class AdamMoments:
    """Of some parameters, after their means were advanced: a step of Adam takes lr * factor * first / below."""

    g: list[Tensor]
    """The gradients, with the weight decay that is part of them."""
    first: list[Tensor]
    below: list[Tensor]
    """sqrt(second) + eps * root, new tensors."""
    roots: list[float]
    """Of the bias correction of the mean squares."""
    factors: list[float]
    """root / bias correction of the means."""


def adam_parameters(optimizer: torch.optim.Adam, group: dict[str, Any]) -> list[Tensor]:
    """Return the parameters of a group that have a gradient, each with torch's own state."""
    parameters: list[Tensor] = []
    optimizer._init_group(group, parameters, *([] for _ in range(5)))  # type: ignore[no-untyped-call]  # noqa: SLF001
    return parameters


def adam_moments(optimizer: torch.optim.Optimizer, p: list[Tensor], group: dict[str, Any]) -> AdamMoments:
    """Advance the means of Adam."""
    (beta1, beta2), wd = group["betas"], group["weight_decay"]
    states = [optimizer.state[one] for one in p]
    first, second, steps = ([state[key] for state in states] for key in ("exp_avg", "exp_avg_sq", "step"))
    torch._foreach_add_(steps, 1)
    g = [cast("Tensor", parameter.grad) for parameter in p]
    if wd and not group["decoupled_weight_decay"]:
        g = list(torch._foreach_add(g, p, alpha=wd))  # noqa: SLF001
    torch._foreach_lerp_(first, g, 1 - beta1)
    torch._foreach_mul_(second, beta2)
    torch._foreach_addcmul_(second, g, g, 1 - beta2)
    below = list(torch._foreach_sqrt(second))  # noqa: SLF001
    counts = [step.item() for step in steps]
    roots = [(1 - beta2**count) ** 0.5 for count in counts]
    torch._foreach_add_(below, [group["eps"] * root for root in roots])
    factors = [root / (1 - beta1**count) for root, count in zip(roots, counts, strict=True)]
    return AdamMoments(g, first, below, roots, factors)


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
        return list(torch._foreach_add(p, others, alpha=scales[0]))  # noqa: SLF001
    return [one.add(other, alpha=scale) for one, other, scale in zip(p, others, scales, strict=True)]


def scale_of(kept: str) -> str:
    """Return the name of the scale in the state of a parameter, beside that of a direction."""
    return f"{kept}_scale"


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


def late_steps(optimizer: torch.optim.Optimizer) -> Iterator[LateSteps]:
    """Yield the steps of one update of an optimizer."""
    if isinstance(optimizer, torch.optim.SGD):
        return _sgd_steps(optimizer)
    if isinstance(optimizer, torch.optim.Adam) and not isinstance(optimizer, Muon):
        return _adam_steps(optimizer)
    return _measured_by_part(optimizer)


def _measured_by_part(optimizer: torch.optim.Optimizer) -> Iterator[LateSteps]:
    """Step part by part, and compare parameters; each is stepped by itself."""
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
                directions = list(torch._foreach_add(g, v, alpha=m)) if group["nesterov"] else v  # noqa: SLF001
            else:
                directions = [cast("Tensor", one.grad).add(one, alpha=wd) for one in p]
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
