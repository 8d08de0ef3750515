"""Error feedback: a step makes up for what the last one lacked, because its gradient came late.

With the step u_t of the base optimizer, weight decay included, and a delay of D updates

    p <- p + u_t + D (u_t - u_(t-1))        u_(-1) = u_0            (arXiv:2606.30634, for D = 1)

A step that came one update late was taken in place of the one that is known now. Their difference is the error, which is made up for.
Where steps change slowly, that is the step one update ahead. At D = 0 it is the base's step, to the bit.

D is the mean delay of the window in updates, which the executor sets in group["staleness"]. The correction is for a delay of at most
one update, and for a mean between none and one: further back, the difference of two steps says nothing of the steps between.

Limit: a step is measured by what it changed, so it is rounded as the parameters are.

Decision: every stage keeps its last step, also without delay, since the next window may be late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor

from petra_graph.catalog.optimizers.spike_compensation import KnowsDelay, chunked, delay_of

# p parameter, u step of the base optimizer, D delay in updates

_LAST = "last_step"
"""In the state of a parameter, -u_(t-1)."""


def steps_by_part(
    optimizer: torch.optim.Optimizer, step: Callable[[], Any]
) -> Iterator[tuple[dict[str, Any], list[Tensor], list[Tensor]]]:
    """Step part by part, so that no copy of all parameters is needed to know what a step changes.

    Args:
        optimizer: its groups are exchanged for one part of one group at a time.
        step: of the optimizer, over the parameters of its groups that have a gradient.

    Yields:
        A group, its parameters of the part, and of each what the step took from it, a new tensor.
    """
    groups = optimizer.param_groups
    try:
        for group in groups:
            moving = [one for one in group["params"] if one.grad is not None]
            for part in chunked(group, moving):
                p: list[Tensor] = moving[part]
                optimizer.param_groups = [group | {"params": p}]
                taken = [one.detach().clone() for one in p]
                step()
                torch._foreach_sub_(taken, p)
                yield group, p, taken
    finally:
        optimizer.param_groups = groups


class ErrorFeedback(KnowsDelay):
    """Corrects the steps of the optimizer class that follows it."""

    largest_staleness = 1.0
    """The mean delay in updates up to which the correction holds."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no caller passes a closure
        """Update every parameter that has a gradient, once."""
        for group, p, taken in steps_by_part(self, super().step):
            states = [self.state[one] for one in p]
            known = [at for at, state in enumerate(states) if _LAST in state]
            if (delay := delay_of(group)) and known:
                last = [cast("Tensor", states[at][_LAST]) for at in known]
                torch._foreach_sub_(last, [taken[at] for at in known])
                torch._foreach_add_([p[at] for at in known], last, alpha=delay)
            for state, own in zip(states, taken, strict=True):
                state[_LAST] = own


class FeedbackSgd(ErrorFeedback, torch.optim.SGD):
    """SGD with error feedback, of torch's arguments."""


class FeedbackAdam(ErrorFeedback, torch.optim.Adam):
    """Adam, or with `decoupled_weight_decay` AdamW, with error feedback, of torch's arguments."""


class FeedbackNadam(ErrorFeedback, torch.optim.NAdam):
    """NAdam with error feedback, of torch's arguments."""
