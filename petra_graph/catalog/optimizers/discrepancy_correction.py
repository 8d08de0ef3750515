"""Discrepancy correction: the backward uses an estimate of the weights that its forward had, D updates before.

Forward and backward then are of one function, nearly, and no older weights are stored. The mean of the optimizer's steps of late, delta,
says how far the weights have moved since:

    delta <- g delta + (1 - g) (w_new - w_old)      g = exp(-2 / D)         (PipeMare's T2, Yang et al. 2021, arXiv:1910.05124)
    backward of a micro-batch that is d updates late: at w - d delta

The mean is over some D / 2 steps. The paper writes g = 0.135^(1 / D), with exp(-2) to three digits. Its D is the delay of the forward
less that of the backward; a backward here has none.

D is the mean delay of the window in updates, which the executor sets in group["staleness"]; d is that of the micro-batch alone.

The state holds delta as -S M: S the mean of the steps' scales (`late_steps`) and M that of their directions u,

    S <- g S + (1 - g) s        M <- M + (1 - g) s / S (u - M)

so that a step costs one pass, and the rate may change.

Decision: at D = 0, g is its limit, 0, and delta the last step. So it is up to date where the next window is late. Where a
pipeline fills, no older step counts, since none lies between a forward and its backward. The first window of a run has no delay, so
that delta begins with a step, and not with zero.
"""

from __future__ import annotations

from math import exp
from typing import Any, ClassVar

import torch
from torch import Tensor

from petra_graph.catalog.optimizers.error_feedback import FeedbackAdam, FeedbackSgd
from petra_graph.catalog.optimizers.late_steps import (
    LateSteps,
    adam_steps,
    added,
    measured_steps,
    scale_of,
    sgd_steps,
    undelayed,
)
from petra_graph.catalog.optimizers.spike_compensation import (
    CompensatedAdam,
    CompensatedSgd,
    KnowsDelay,
    chunked,
    delay_of,
)
from petra_graph.catalog.optimizers.torch_optimizers import SGD, Adam
from petra_graph.catalog.optimizers.weight_prediction import WeightsOfDelay

# w weights, delta mean step, g share of delta that is kept, D delay of a window and d of a micro-batch in updates

_MEAN = "mean_step"
"""In the state of a parameter, M."""
_SCALE = scale_of(_MEAN)


class EarlierWeights(KnowsDelay):
    """Estimates the earlier weights of the optimizer class that follows it, whose steps it leaves as they are."""

    all_steps: ClassVar[Any] = staticmethod(measured_steps)
    """(self, the step of the class that follows) -> the `LateSteps` of one update."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no caller passes a closure
        """Update every parameter that has a gradient, once, and the mean of its steps."""
        if not any(map(delay_of, self.param_groups)):
            undelayed(self, super().step, _MEAN)
            return
        for now in self.all_steps(self, super().step):
            now.take([0.0] * len(now.p))
            self._follow(now, exp(-2 / delay_of(now.group)))

    def _follow(self, now: LateSteps, kept: float) -> None:
        states = [self.state[one] for one in now.p]
        for state, direction in zip(states, now.directions, strict=True):
            if _MEAN not in state:
                state |= {_MEAN: torch.zeros_like(direction), _SCALE: 0.0}
        means: list[Tensor] = [state[_MEAN] for state in states]
        shares = []
        for state, scale in zip(states, now.scales, strict=True):
            state[_SCALE] = kept * state[_SCALE] + (1 - kept) * scale
            shares.append((1 - kept) * scale / state[_SCALE] if state[_SCALE] else 1.0)
        torch._foreach_lerp_(means, now.directions, shares)

    @torch.no_grad()
    def earlier_weights(self, delay: int) -> WeightsOfDelay:
        """Return each parameter with an estimate of its value `delay` updates ago; nothing is written to parameters or state.

        Parameters that have taken no step, and at a delay of 0 all, are left out: they are as they were.
        """
        found: WeightsOfDelay = []
        for group in self.param_groups if delay else ():
            w = [one for one in group["params"] if _MEAN in self.state.get(one, {})]
            for part in chunked(group, w):
                states = [self.state[one] for one in w[part]]
                means, shares = ([state[_MEAN] for state in states], [delay * state[_SCALE] for state in states])
                found += zip(w[part], added(w[part], means, shares), strict=True)
        return found


class EarlierSgd(EarlierWeights, SGD):
    """SGD with `earlier_weights`."""

    all_steps = staticmethod(sgd_steps)


class EarlierCompensatedSgd(EarlierWeights, CompensatedSgd):
    """SGD with spike compensation and `earlier_weights`."""


class EarlierFeedbackSgd(EarlierWeights, FeedbackSgd):
    """SGD with error feedback and `earlier_weights`."""


class EarlierAdam(EarlierWeights, Adam):
    """Adam, or with `decoupled_weight_decay` AdamW, with `earlier_weights`."""

    all_steps = staticmethod(adam_steps)


class EarlierCompensatedAdam(EarlierWeights, CompensatedAdam):
    """`EarlierAdam` with spike compensation."""


class EarlierFeedbackAdam(EarlierWeights, FeedbackAdam):
    """`EarlierAdam` with error feedback."""
