"""Error feedback: a step makes up for what the last one lacked, because its gradient came late.

With the step u_t of the base optimizer, weight decay included, and a delay of D updates

    p <- p + u_t + D (u_t - u_(t-1))        u_(-1) = u_0            (arXiv:2606.30634, for D = 1)

A step that came one update late was taken in place of the one that is known now. Their difference is the error, which is made up for.
Where steps change slowly, that is the step one update ahead. At D = 0 it is the base's step, to the bit.

D is the mean delay of the window in updates, which the executor sets in group["staleness"]. The correction is for a delay of at most
one update, and for a mean between none and one: further back, the difference of two steps says nothing of the steps between.

Decision: every stage keeps its last step, also without delay, since the next window may be late.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from petra_graph_delay.late_steps import LateSteps, add_scaled, late_steps, scale_of, undelayed
from petra_graph_delay.optimizer_wrapper import OptimizerWrapper, delay_of

# p parameter, u step of the base optimizer, D delay in updates

_LAST = "last_step"
"""In the state of a parameter, the direction of u_(t-1); `scale_of` it says what to take it times."""
_SCALE = scale_of(_LAST)


class ErrorFeedback(OptimizerWrapper):
    """Error feedback of any optimizer."""

    largest_staleness = 1.0
    """The mean delay in updates up to which the correction holds."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no caller passes a closure
        """Update every parameter that has a gradient, once."""
        if not any(map(delay_of, self.param_groups)):
            undelayed(self.inner, _LAST)
            return
        for now in late_steps(self.inner):
            self._correct(now, delay_of(now.group))

    def _correct(self, now: LateSteps, delay: float) -> None:
        states = [self.state[one] for one in now.p]
        known = [at for at, state in enumerate(states) if _LAST in state]
        now.take([delay if _LAST in state else 0.0 for state in states])
        if known:
            last: list[Any] = [states[at][_LAST] for at in known]
            add_scaled([now.p[at] for at in known], last, [delay * states[at][_SCALE] for at in known])
        for state, direction, scale in zip(states, now.directions, now.scales, strict=True):
            state[_LAST] = direction if now.own else _held(state, direction)
            state[_SCALE] = scale


def _held(state: dict[str, Any], direction: Tensor) -> Tensor:
    """Return a copy, in the memory of the last one."""
    held: Tensor = state.get(_LAST, torch.empty_like(direction))
    return held.copy_(direction)
