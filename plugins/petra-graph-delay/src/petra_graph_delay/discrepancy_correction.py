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

import torch
from torch import Tensor

from petra_graph_delay.known_optimizers import chunked
from petra_graph_delay.late_steps import LateSteps, added, late_steps, scale_of, undelayed
from petra_graph_delay.optimizer_wrapper import OptimizerWrapper, WeightsOfDelay, delay_of

# w weights, delta mean step, g share of delta that is kept, D delay of a window and d of a micro-batch in updates

_MEAN = "mean_step"
"""In the state of a parameter, M."""
_SCALE = scale_of(_MEAN)


class EarlierWeights(OptimizerWrapper):
    """Estimates the earlier weights of any optimizer, whose steps it leaves as they are."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no caller passes a closure
        """Update every parameter that has a gradient, once, and the mean of its steps."""
        if not any(map(delay_of, self.param_groups)):
            undelayed(self.inner, _MEAN)
            return
        for now in late_steps(self.inner):
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
