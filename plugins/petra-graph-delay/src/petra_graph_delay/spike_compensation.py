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

An optimizer that looks ahead along its momentum by a number of updates, as `muon` does by 1 with Nesterov momentum, looks further ahead
by D. For Muon, whose orthogonal step does not see a factor of v, this is the same spike.

Limit: a late gradient is still that of old parameters. The correction is of when a gradient acts, not of where it was taken.

Decision: without delay, the step is torch's own, and so has its bits; with delay, a step has as many passes over the parameters as
torch's. Adam's saves the division by the root of v's bias correction, by scaling eps and the rates instead, and has the gradient's own step
in its place.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from petra_graph_delay.known_optimizers import (
    AHEAD,
    adam_moments,
    adam_parameters,
    chunked,
    sgd_moments,
    with_gradients,
)
from petra_graph_delay.optimizer_wrapper import OptimizerWrapper, delay_of

# m momentum or beta1, D delay in updates, g gradient, v momentum buffer, w and p parameters


def spike_shares(momentum: float, delay: float) -> tuple[float, float]:
    """Return a and b: how much of the momentum buffer and of the gradient a step takes, for a momentum below 1."""
    return momentum**delay, (1 - momentum**delay) / (1 - momentum)


def sgd_shares(group: dict[str, Any], delay: float) -> tuple[float, float]:
    """Return the shares of momentum buffer and gradient in a step of SGD: of plain or Nesterov momentum, where the delay is 0."""
    return spike_shares(group["momentum"], delay + (1 if group["nesterov"] else 0))


class Spike(OptimizerWrapper):
    """Spike compensation of an optimizer whose momentum is known (`known_optimizers`)."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no caller passes a closure
        """Update every parameter that has a gradient, once."""
        if not any(map(delay_of, self.param_groups)):
            self.inner.step()
            return
        for group in self.param_groups:
            if AHEAD in group:
                self._step_ahead(group)
            elif isinstance(self.inner, torch.optim.SGD):
                parameters = with_gradients(group)
                for part in chunked(group, parameters):
                    self._update_sgd(parameters[part], group)
            else:
                parameters = adam_parameters(cast("torch.optim.Adam", self.inner), group)
                for part in chunked(group, parameters):
                    self._update_adam(parameters[part], group)

    def _step_ahead(self, group: dict[str, Any]) -> None:
        """Let the optimizer step a group that looks further ahead by the delay."""
        groups, ahead = self.param_groups, group[AHEAD]
        self.param_groups, group[AHEAD] = [group], ahead + delay_of(group)
        try:
            self.inner.step()
        finally:
            self.param_groups, group[AHEAD] = groups, ahead

    def _update_sgd(self, w: list[Tensor], group: dict[str, Any]) -> None:
        lr = group["lr"]
        a, b = sgd_shares(group, delay_of(group))
        g, v = sgd_moments(self, w, group)
        torch._foreach_add_(w, v, alpha=-lr * a)
        torch._foreach_add_(w, g, alpha=-lr * b)

    def _update_adam(self, p: list[Tensor], group: dict[str, Any]) -> None:
        if group["weight_decay"] and group["decoupled_weight_decay"]:
            torch._foreach_mul_(p, 1 - group["lr"] * group["weight_decay"])
        now = adam_moments(self, p, group)
        kept = group["betas"][0] ** delay_of(group)
        of_mean = [-group["lr"] * kept * factor for factor in now.factors]
        of_gradient = [-group["lr"] * (1 - kept) * root for root in now.roots]
        torch._foreach_addcdiv_(p, now.first, now.below, of_mean)
        torch._foreach_addcdiv_(p, now.g, now.below, of_gradient)
