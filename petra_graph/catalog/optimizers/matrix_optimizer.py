"""An optimizer of matrices that is AdamW for all other parameters, in one object with one state.

Kernels of convolutions are matrices of their first dimension and all others together: [out, in, ...] is [out, in * ...].

Decision: it is a torch Adam that passes the groups of matrices over, so that AdamW's step, corrected for delay or not, is the
siblings' to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from petra_graph.catalog.optimizers.torch_optimizers import Adam
from petra_graph.plugins import ParameterGroups

MATRICES = "matrices"
"""The key of a group whose parameters are matrices."""


def groups_with_matrices(
    groups: ParameterGroups, matrices: Sequence[nn.Parameter], *, weight_decay: float, **options: Any
) -> list[dict[str, Any]]:
    """Return three groups: the matrices, which are decayed, with options of their own; the other decayed parameters; the undecayed."""
    decayed, undecayed = groups.param_groups(weight_decay=weight_decay)
    own = set(map(id, matrices))
    others = [one for one in decayed["params"] if id(one) not in own]
    return [decayed | {"params": list(matrices), MATRICES: True} | options, decayed | {"params": others}, undecayed]


class MatrixOptimizer(Adam):
    """Adam, or with `decoupled_weight_decay` AdamW, but for the groups of matrices, which step by `_step_matrix`."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no caller passes a closure
        """Update every parameter that has a gradient, once."""
        for group in self.param_groups:
            for parameter in group["params"] if group.get(MATRICES) else ():
                if parameter.grad is not None:
                    self._step_matrix(parameter, parameter.grad, group)
        super().step()

    def _step_matrix(self, p: Tensor, g: Tensor, group: dict[str, Any]) -> None:
        """Update a parameter of two dimensions or more by its gradient."""
        raise NotImplementedError

    def _init_group(self, group: dict[str, Any], *lists: list[Tensor]) -> bool:
        """Add the parameters that Adam steps, and their state, to lists, of which matrices are in none."""
        return False if group.get(MATRICES) else bool(super()._init_group(group, *lists))  # type: ignore[no-untyped-call]

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Adam's own fills in what old versions of torch did not save, and looks for its counter at every parameter.
        torch.optim.Optimizer.__setstate__(self, state)
