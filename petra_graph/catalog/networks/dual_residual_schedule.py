"""The coefficients of dual residual blocks over a training: from a copy of the pretrained network to one that inverts well.

Each stage moves its own blocks' coefficients at its own updates, as it does its learning rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch
from torch import Tensor

from petra_graph.blocks.residual_chain import COEFFICIENTS
from petra_graph.plugins import AtLeast, Callback, Companion, GreaterThan


class DualResidualSchedule(Callback):
    """Moves alpha and beta of dual residual nodes linearly, from their first values to others.

    Zhao et al. 2024, "dynamic finetuning", https://arxiv.org/abs/2401.04105.
    """

    changes = "weights"

    def __init__(
        self,
        *,
        alpha: Annotated[float, "value of alpha at the end"] = 0.3,
        beta: Annotated[float, "value of beta at the end", GreaterThan(0)] = 0.7,
        updates: Annotated[int, "updates of a stage over which they move; they stay afterwards", AtLeast(1)] = 1000,
    ) -> None:
        self._ends, self._updates = {"alpha": alpha, "beta": beta}, updates

    def at_stage(self, parameters: Mapping[str, Tensor]) -> Companion | None:
        """Return what moves the coefficients of a stage."""
        moved = {}
        for name, tensor in parameters.items():
            if (coefficient := name.rpartition("/")[2]) in COEFFICIENTS:
                moved[name] = tensor, self._ends[coefficient]
        return _Moving(moved, self._updates) if moved else None


class _Moving(Companion):
    """The coefficients of one stage, and where they began."""

    def __init__(self, moved: Mapping[str, tuple[Tensor, float]], updates: int) -> None:
        self.moved = moved
        self.updates = updates
        self.begun = {name: tensor.detach().clone() for name, (tensor, _) in moved.items()}

    @torch.no_grad()
    def updated(self, updates: int) -> None:
        """Move to where the coefficients are after this number of updates."""
        share = min(1.0, updates / self.updates)
        for name, (tensor, end) in self.moved.items():
            tensor.copy_(self.begun[name] * (1.0 - share) + end * share)

    def state(self) -> Mapping[str, Tensor]:
        """Return where the coefficients began."""
        return self.begun

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from where they began."""
        self.begun = dict(tensors)
