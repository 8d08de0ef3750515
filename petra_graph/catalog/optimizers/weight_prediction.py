"""Weight prediction: the forward uses the parameters that its backward is expected to find, D updates later.

The gradients of the D updates in between are expected to be zero in the mean, so that the momentum alone moves the parameters. With
torch's velocity v (v <- m v + g):

    SGD with momentum     w - lr (m + m^2 + ... + m^D) v = w - lr (m - m^(D+1)) / (1 - m) v
    with Nesterov         m times that: a step without gradient moves w by lr m (m v)
    Adam                  p - sum over i = 1..D of lr m_hat_i / (sqrt(v_hat) + eps),    m_hat_i = beta1^i m / (1 - beta1^(t+i))
    AdamW                 the same, and before each of the D moves p shrinks by lr wd, as in a step

Sources: SpecTrain (Chen et al. 2018, arXiv:1809.02839), XPipe (Guan et al. 2019, arXiv:1911.04610) and FTPipe (Eliad et al. 2021), whose
code has the sums; SpecTrain's and XPipe's velocity stays as it is over the D updates, and here, as in FTPipe, it decays.

Weight decay that is part of the gradient is not zero in the mean. SGD's steps are then linear in w and v, and the prediction is that of
D such steps exactly. Adam's decay is that of the parameters of now, in all D updates.

With spike compensation, the steps in between are compensated ones: the shares a and b = (1 - a) of `spike_compensation` apply to them.

Limits: the learning rate is expected to stay that of the last step. In a noisy descent, the next D gradients are not small beside the
momentum, and the prediction is short of them.

Decision: v_hat stays as it is. FTPipe holds Adam's v and advances its bias correction, which lets v_hat fall in the first updates, as
if the gradients to come were zero and yet v did not decay. The gradients to come are zero in the mean, and of the size of those before.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from petra_graph.catalog.optimizers.spike_compensation import (
    CompensatedAdam,
    CompensatedSgd,
    chunked,
    delay_of,
    sgd_shares,
)
from petra_graph.catalog.optimizers.torch_optimizers import SGD, Adam

# m momentum or beta1, D delay in updates, v momentum buffer, wd weight decay, t steps so far

WeightsOfDelay = list[tuple[nn.Parameter, Tensor]]
"""Parameters, each with a tensor like it that shares no memory with it."""


class PredictedSgd(SGD):
    """SGD with `predicted_weights`."""

    @torch.no_grad()
    def predicted_weights(self, delay: int) -> WeightsOfDelay:
        """Return each parameter with its expected value after `delay` more updates; nothing is written to parameters or state.

        Parameters that have taken no step, and at a delay of 0 all, are left out: they are expected to stay.
        """
        found: WeightsOfDelay = []
        for group in self.param_groups if delay else ():
            w = [one for one in group["params"] if "momentum_buffer" in self.state.get(one, {})]
            of_w, of_v = _sgd_coefficients(group, delay, self._compensated(group))
            for part in chunked(group, w):
                v = [self.state[one]["momentum_buffer"] for one in w[part]]
                if of_w == 1:
                    moved = torch._foreach_add(w[part], v, alpha=of_v)  # noqa: SLF001  torch names it so
                else:
                    moved = torch._foreach_mul(w[part], of_w)  # noqa: SLF001
                    torch._foreach_add_(moved, v, alpha=of_v)
                found += zip(w[part], moved, strict=True)
        return found

    def _compensated(self, group: dict[str, Any]) -> float:
        """The delay that the steps of a group compensate."""
        return 0.0


def _sgd_coefficients(group: dict[str, Any], delay: int, compensated: float) -> tuple[float, float]:
    """Return the shares of w and v in the weights after `delay` steps without gradient."""
    m, lr, wd = group["momentum"], group["lr"], group["weight_decay"]
    a, b = sgd_shares(group, compensated)
    w, v = (1.0, 0.0), (0.0, 1.0)  # as shares of w and v of now
    for _ in range(delay):
        g = [wd * share for share in w]
        v = (m * v[0] + g[0], m * v[1] + g[1])
        w = (w[0] - lr * (a * v[0] + b * g[0]), w[1] - lr * (a * v[1] + b * g[1]))
    return w


class PredictedCompensatedSgd(CompensatedSgd, PredictedSgd):
    """SGD with spike compensation and `predicted_weights`."""

    def _compensated(self, group: dict[str, Any]) -> float:
        return delay_of(group)


class PredictedAdam(Adam):
    """Adam, or with `decoupled_weight_decay` AdamW, with `predicted_weights`."""

    @torch.no_grad()
    def predicted_weights(self, delay: int) -> WeightsOfDelay:
        """Return each parameter with its expected value after `delay` more updates; as `PredictedSgd` does it."""
        found: WeightsOfDelay = []
        for group in self.param_groups if delay else ():
            p = [one for one in group["params"] if "exp_avg" in self.state.get(one, {})]
            for part in chunked(group, p):
                found += zip(p[part], self._predicted(p[part], group, delay), strict=True)
        return found

    def _predicted(self, p: list[Tensor], group: dict[str, Any], delay: int) -> list[Tensor]:
        first, second = ([self.state[one][key] for one in p] for key in ("exp_avg", "exp_avg_sq"))
        counts = [self.state[one]["step"].item() for one in p]
        roots = [(1 - group["betas"][1] ** count) ** 0.5 for count in counts]
        below = torch._foreach_sqrt(second)  # noqa: SLF001
        torch._foreach_add_(below, [group["eps"] * root for root in roots])
        shares = [_adam_coefficients(group, delay, count, self._compensated(group)) for count in counts]
        of_mean = [-one[1] * root for one, root in zip(shares, roots, strict=True)]
        (decayed,) = {one[0] for one in shares}
        if decayed == 1:
            moved = list(torch._foreach_addcdiv(p, first, below, of_mean))  # noqa: SLF001
        else:
            moved = list(torch._foreach_mul(p, decayed))  # noqa: SLF001
            torch._foreach_addcdiv_(moved, first, below, of_mean)
        if any(one[2] for one in shares):
            of_decay = [-one[2] * root for one, root in zip(shares, roots, strict=True)]
            torch._foreach_addcdiv_(moved, p, below, of_decay)
        return moved

    def _compensated(self, group: dict[str, Any]) -> float:
        """The delay that the steps of a group compensate."""
        return 0.0


def _adam_coefficients(
    group: dict[str, Any], delay: int, count: float, compensated: float
) -> tuple[float, float, float]:
    """Return the share of p in the prediction, and those of m and p in the move, which sqrt(v_hat) + eps divides."""
    beta1, lr, wd = group["betas"][0], group["lr"], group["weight_decay"]
    decoupled = group["decoupled_weight_decay"]
    kept = beta1**compensated
    of_p, of_m, of_decay = 1.0, 0.0, 0.0
    for i in range(1, delay + 1):
        shrunk = 1 - lr * wd if decoupled else 1.0
        bias = 1 - beta1 ** (count + i)
        of_p, of_m = shrunk * of_p, shrunk * of_m + lr * kept * beta1**i / bias
        if not decoupled:
            of_decay += lr * wd * (kept * (1 - beta1**i) / bias + 1 - kept)
    return of_p, of_m, of_decay


class PredictedCompensatedAdam(CompensatedAdam, PredictedAdam):
    """`PredictedAdam` with spike compensation."""

    def _compensated(self, group: dict[str, Any]) -> float:
        return delay_of(group)
