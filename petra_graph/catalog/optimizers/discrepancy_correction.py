"""Discrepancy correction: the backward uses an estimate of the weights that its forward had, D updates before.

Forward and backward then are of one function, nearly, and no older weights are stored. The mean of the optimizer's steps of late, delta,
says how far the weights have moved since:

    delta <- g delta + (1 - g) (w_new - w_old)      g = exp(-2 / D)         (PipeMare's T2, Yang et al. 2021, arXiv:1910.05124)
    backward of a micro-batch that is d updates late: at w - d delta

The mean is over some D / 2 steps. The paper writes g = 0.135^(1 / D), with exp(-2) to three digits. Its D is the delay of the forward
less that of the backward; a backward here has none.

D is the mean delay of the window in updates, which the executor sets in group["staleness"]; d is that of the micro-batch alone.

Limit: the step is measured by what it changed, so it is rounded as the parameters are.

Decision: at D = 0, g is its limit, 0, and delta the last step. So it is up to date where the next window is late. Where a
pipeline fills, no older step counts, since none lies between a forward and its backward. The first window of a run has no delay, so
that delta begins with a step, and not with zero.
"""

from __future__ import annotations

from math import exp
from typing import Any

import torch
from torch import Tensor

from petra_graph.catalog.optimizers.error_feedback import FeedbackAdam, FeedbackSgd, steps_by_part
from petra_graph.catalog.optimizers.spike_compensation import (
    CompensatedAdam,
    CompensatedSgd,
    KnowsDelay,
    chunked,
    delay_of,
)
from petra_graph.catalog.optimizers.weight_prediction import WeightsOfDelay

# w weights, delta mean step, g share of delta that is kept, D delay of a window and d of a micro-batch in updates

_MEAN = "mean_step"
"""In the state of a parameter, -delta."""


class EarlierWeights(KnowsDelay):
    """Estimates the earlier weights of the optimizer class that follows it, whose steps it leaves as they are."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no caller passes a closure
        """Update every parameter that has a gradient, once, and the mean of its steps."""
        for group, p, taken in steps_by_part(self, super().step):
            states = [self.state[one] for one in p]
            for state, own in zip(states, taken, strict=True):
                if _MEAN not in state:
                    state[_MEAN] = torch.zeros_like(own)
            delay = delay_of(group)
            kept = exp(-2 / delay) if delay else 0.0
            means: list[Tensor] = [state[_MEAN] for state in states]
            torch._foreach_lerp_(means, taken, 1 - kept)

    @torch.no_grad()
    def earlier_weights(self, delay: int) -> WeightsOfDelay:
        """Return each parameter with an estimate of its value `delay` updates ago; nothing is written to parameters or state.

        Parameters that have taken no step, and at a delay of 0 all, are left out: they are as they were.
        """
        found: WeightsOfDelay = []
        for group in self.param_groups if delay else ():
            w = [one for one in group["params"] if _MEAN in self.state.get(one, {})]
            for part in chunked(group, w):
                means: list[Any] = [self.state[one][_MEAN] for one in w[part]]
                found += zip(w[part], torch._foreach_add(w[part], means, alpha=delay), strict=True)  # noqa: SLF001
        return found


class EarlierSgd(EarlierWeights, torch.optim.SGD):
    """SGD with `earlier_weights`."""


class EarlierCompensatedSgd(EarlierWeights, CompensatedSgd):
    """SGD with spike compensation and `earlier_weights`."""


class EarlierFeedbackSgd(EarlierWeights, FeedbackSgd):
    """SGD with error feedback and `earlier_weights`."""


class EarlierAdam(EarlierWeights, torch.optim.Adam):
    """Adam, or with `decoupled_weight_decay` AdamW, with `earlier_weights`."""


class EarlierCompensatedAdam(EarlierWeights, CompensatedAdam):
    """`EarlierAdam` with spike compensation."""


class EarlierFeedbackAdam(EarlierWeights, FeedbackAdam):
    """`EarlierAdam` with error feedback."""
