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

from typing import Any, ClassVar

import torch
from torch import Tensor

from petra_graph.catalog.optimizers.late_steps import (
    LateSteps,
    adam_steps,
    add_scaled,
    measured_steps,
    scale_of,
    sgd_steps,
    undelayed,
)
from petra_graph.catalog.optimizers.spike_compensation import KnowsDelay, delay_of
from petra_graph.catalog.optimizers.torch_optimizers import SGD, Adam, NAdam

# p parameter, u step of the base optimizer, D delay in updates

_LAST = "last_step"
"""In the state of a parameter, the direction of u_(t-1); `scale_of` it says what to take it times."""
_SCALE = scale_of(_LAST)


class ErrorFeedback(KnowsDelay):
    """Corrects the steps of the optimizer class that follows it."""

    largest_staleness = 1.0
    """The mean delay in updates up to which the correction holds."""

    base_steps: ClassVar[Any] = staticmethod(measured_steps)
    """(self, the step of the class that follows) -> the `LateSteps` of one update."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no caller passes a closure
        """Update every parameter that has a gradient, once."""
        if not any(map(delay_of, self.param_groups)):
            undelayed(self, super().step, _LAST)
            return
        for now in self.base_steps(self, super().step):
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


class FeedbackSgd(ErrorFeedback, SGD):
    """SGD with error feedback, of torch's arguments."""

    base_steps = staticmethod(sgd_steps)


class FeedbackAdam(ErrorFeedback, Adam):
    """Adam, or with `decoupled_weight_decay` AdamW, with error feedback, of torch's arguments."""

    base_steps = staticmethod(adam_steps)


class FeedbackNadam(ErrorFeedback, NAdam):
    """NAdam with error feedback, of torch's arguments."""
