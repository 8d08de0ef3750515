"""An optimizer around another one, with the groups and the state of that one.

Corrections are such wrappers, one in another: an estimate of earlier weights around a spike around Adam. The executor and
checkpoints know the outermost, whose groups and state are those of the innermost. Whatever else the innermost has, such as
`evaluated_weights`, the outermost has, too.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

WeightsOfDelay = list[tuple[nn.Parameter, Tensor]]
"""Parameters, each with a tensor like it that shares no memory with it."""


class OptimizerWrapper(torch.optim.Optimizer):
    """Steps as the optimizer inside it. Every group has a "staleness", which the executor sets before each step."""

    inner: torch.optim.Optimizer

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        # Optimizer.__init__ would make groups of its own; this is how torch makes an optimizer from a pickled one.
        self.__setstate__({"inner": inner, "defaults": inner.defaults})
        for group in inner.param_groups:
            group.setdefault("staleness", 0.0)
            if group.get("fused"):  # Late steps are not fused, and the state of fused ones is on the GPU.
                group["fused"] = None

    @property
    def wrapped(self) -> torch.optim.Optimizer:
        """The innermost optimizer."""
        return self.inner.wrapped if isinstance(self.inner, OptimizerWrapper) else self.inner

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.inner.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.inner.param_groups = groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.inner.state

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no caller passes a closure
        """Update every parameter that has a gradient, once."""
        self.inner.step()

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from what `state_dict` has returned."""
        self.inner.load_state_dict(state_dict)


def delay_of(group: dict[str, Any]) -> float:
    """Return the mean delay in updates of the gradients of a group."""
    return cast("float", group["staleness"])
