"""The steps of torch's SGD and Adam, which some corrections make in another way; and what is known of other optimizers.

    SGD         v <- m v + g                                    momentum_buffer
    Adam        first <- beta1 first + (1 - beta1) g            exp_avg, exp_avg_sq, step
                second <- beta2 second + (1 - beta2) g^2

An optimizer of another class is known by the key "ahead" of its groups: how many updates its momentum looks ahead in these, 1 with
Nesterov momentum. Groups of it without the key are Adam's, of which it is a subclass. So is `muon`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from inspect import unwrap
from typing import Any, cast

import torch
from attrs import frozen
from torch import Tensor

# m momentum or beta1, g gradient, v momentum buffer, w and p parameters, wd weight decay

AHEAD = "ahead"
_CACHED = 2**16
"""Elements of the parameters that a processor takes together; with gradients and state, a MiB in float32."""
_PARAMETER_BY_PARAMETER = {"torch", "petra_graph"}
"""Packages whose optimizers step each parameter by itself, and remember nothing in their groups."""


def is_sgd(optimizer: torch.optim.Optimizer) -> bool:
    """Whether steps are those of torch's SGD, without dampening and maximize."""
    return _steps_as(optimizer, torch.optim.SGD) and not _has(optimizer, "dampening", "maximize", "differentiable")


def is_adam(optimizer: torch.optim.Optimizer) -> bool:
    """Whether steps are those of torch's Adam or AdamW, without amsgrad, maximize, capturable and differentiable."""
    unlike = ("amsgrad", "maximize", "capturable", "differentiable")
    return _steps_as(optimizer, torch.optim.Adam) and not _has(optimizer, *unlike)


def looks_ahead(optimizer: torch.optim.Optimizer) -> bool:
    """Whether groups have the key "ahead"."""
    return isinstance(optimizer, torch.optim.Adam) and any(AHEAD in group for group in optimizer.param_groups)


def steps_by_parameter(optimizer: torch.optim.Optimizer) -> bool:
    """Whether steps of a few parameters at a time are those of all at once."""
    return type(optimizer).__module__.partition(".")[0] in _PARAMETER_BY_PARAMETER


def _steps_as(optimizer: torch.optim.Optimizer, torchs: type[torch.optim.Optimizer]) -> bool:
    """Whether an optimizer has the step of a class of torch's, whatever is around it."""
    return unwrap(type(optimizer).step) is unwrap(torchs.step)


def _has(optimizer: torch.optim.Optimizer, *keys: str) -> bool:
    return any(group[key] for group in optimizer.param_groups for key in keys)


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
    optimizer: torch.optim.Optimizer, w: list[Tensor], group: dict[str, Any]
) -> tuple[list[Tensor], list[Tensor]]:
    """Advance the momentum buffers of SGD with momentum; return the gradients with weight decay, and the buffers."""
    wd = group["weight_decay"]
    g = [cast("Tensor", parameter.grad) for parameter in w]
    g = list(torch._foreach_add(g, w, alpha=wd)) if wd else g  # noqa: SLF001  torch names it so
    new = [one for one in w if "momentum_buffer" not in optimizer.state[one]]
    for one in new:
        optimizer.state[one]["momentum_buffer"] = torch.zeros_like(one)
    v = [optimizer.state[one]["momentum_buffer"] for one in w]
    _follow(v, g, group["momentum"])
    return g, v


def _follow(v: list[Tensor], g: list[Tensor], m: float) -> None:
    """Make v what it becomes with the next gradient, m v + g; on a processor in one pass, which pays for the step's second share."""
    if v and v[0].is_cuda:
        torch._foreach_mul_(v, m)
        torch._foreach_add_(v, g)
        return
    for velocity, gradient in zip(v, g, strict=True):
        torch.add(gradient, velocity, alpha=m, out=velocity)


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
