"""Spike compensation: a gradient that comes D updates late moves the parameters at once by what it would have moved them by now.

With momentum m, a gradient moves the parameters over many updates, by 1, m, m^2, ... of itself. One that is D updates late has
missed the first D of these. It makes up for them in a spike, and then has the momentum of its age:

    v <- m v + g                        a = m^D                            (Kosson et al. 2020, arXiv:2003.11666)
    w <- w - lr (a v + b g)             b = 1 + m + ... + m^(D-1) = (1 - m^D) / (1 - m)

D is the mean delay of the window in updates, which the executor sets in group["staleness"]; it need not be whole. At D = 0 it is SGD
with momentum, at D = 1 torch's Nesterov momentum. So Nesterov momentum under a delay of D is the spike of D + 1.

Adam's mean of gradients is treated likewise, in the scale of a mean, where b becomes 1 - beta1^D:

    p <- p - lr (beta1^D m_hat + (1 - beta1^D) g) / (sqrt(v_hat) + eps)

The paper has no such formula: it is that of SGD for Adam's numerator. Weight decay is that of the base optimizer.

Limit: a late gradient is still that of old parameters. The correction is of when a gradient acts, not of where it was taken.

Decision: without delay, the step is torch's own, and so has its bits; with delay, a step has as many passes over the parameters as
torch's. Adam's saves the division by the root of v's bias correction, by scaling eps and the rates instead, and has the gradient's own step
in its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from attrs import frozen
from torch import Tensor

from petra_graph.catalog.optimizers.torch_optimizers import SGD, Adam, Unmarked

_CACHED = 2**16
"""Elements of the parameters that a processor takes together; with gradients and state, a MiB in float32."""

# m momentum or beta1, D delay in updates, g gradient, v momentum buffer, wd weight decay


def spike_shares(momentum: float, delay: float) -> tuple[float, float]:
    """Return a and b: how much of the momentum buffer and of the gradient a step takes, for a momentum below 1."""
    return momentum**delay, (1 - momentum**delay) / (1 - momentum)


class KnowsDelay(Unmarked):
    """Every group has a "staleness", which the executor sets before each step."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, of no delay until it is set."""
        super().add_param_group({"staleness": 0.0} | param_group)


def delay_of(group: dict[str, Any]) -> float:
    """Return the mean delay in updates of the gradients of a group."""
    return cast("float", group["staleness"])


def chunked(group: dict[str, Any], parameters: Sequence[Tensor]) -> Iterator[slice]:
    """Yield which parameters torch's kernels of many tensors take together.

    All, where these kernels are fused, as on CUDA; otherwise as many as stay in a processor's cache over the passes of a step.
    """
    at_once = group["foreach"]
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


class CompensatedSgd(KnowsDelay, SGD):
    """SGD with spike compensation, of torch's arguments and state; without dampening and maximize."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no caller passes a closure
        """Update every parameter that has a gradient, once."""
        if not any(delay_of(group) and group["momentum"] for group in self.param_groups):
            super().step()
            return
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            for part in chunked(group, parameters):
                self._update(parameters[part], group)

    def _update(self, w: list[Tensor], group: dict[str, Any]) -> None:
        lr = group["lr"]
        a, b = sgd_shares(group, delay_of(group))
        g, v = sgd_moments(self, w, group)
        torch._foreach_add_(w, v, alpha=-lr * a)
        torch._foreach_add_(w, g, alpha=-lr * b)


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


def sgd_shares(group: dict[str, Any], delay: float) -> tuple[float, float]:
    """Return the shares of momentum buffer and gradient in a step of SGD: of plain or Nesterov momentum, where the delay is 0."""
    return spike_shares(group["momentum"], delay + (1 if group["nesterov"] else 0))


class CompensatedAdam(KnowsDelay, Adam):
    """Adam, or with `decoupled_weight_decay` AdamW, with spike compensation, of torch's arguments and state.

    Without amsgrad, maximize, capturable, differentiable and fused.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no caller passes a closure
        """Update every parameter that has a gradient, once."""
        if not any(delay_of(group) for group in self.param_groups):
            super().step()
            return
        for group in self.param_groups:
            parameters = adam_parameters(self, group)
            for part in chunked(group, parameters):
                self._update(parameters[part], group)

    def _update(self, p: list[Tensor], group: dict[str, Any]) -> None:
        if group["weight_decay"] and group["decoupled_weight_decay"]:
            torch._foreach_mul_(p, 1 - group["lr"] * group["weight_decay"])
        now = adam_moments(self, p, group)
        kept = group["betas"][0] ** delay_of(group)
        of_mean = [-group["lr"] * kept * factor for factor in now.factors]
        of_gradient = [-group["lr"] * (1 - kept) * root for root in now.roots]
        torch._foreach_addcdiv_(p, now.first, now.below, of_mean)
        torch._foreach_addcdiv_(p, now.g, now.below, of_gradient)


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


def adam_moments(optimizer: torch.optim.Adam, p: list[Tensor], group: dict[str, Any]) -> AdamMoments:
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
