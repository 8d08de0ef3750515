"""The exponential moving average of all parameters, kept with each stage, in the process of that stage.

    average <- decay * average + (1 - decay) * parameter        after every n-th update of the stage

The average begins with the parameters after the first such update, and is on the stage's device: the size of its parameters again,
which the plan's memory does not count. Running statistics are not averaged: the file has those of the run. In it the averages have
the names that parameters have in `weights.safetensors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch
from torch import Tensor

from petra_graph.plugins import AtLeast, Callback, Companion, LessThan


class Ema(Callback):
    """Exponential moving average of all parameters, written as `weights-ema.safetensors` at the end."""

    def __init__(
        self,
        *,
        decay: Annotated[float, "share of the average that is kept", AtLeast(0), LessThan(1)] = 0.999,
        every: Annotated[int, "updates of a stage between two steps of its average", AtLeast(1)] = 1,
    ) -> None:
        self._decay, self._every = decay, every

    def at_stage(self, parameters: Mapping[str, Tensor]) -> Companion:
        return Averages(parameters, self._decay, self._every)

    def ended(self, weights: Mapping[str, Tensor], kept: Mapping[str, Tensor]) -> Mapping[str, Mapping[str, Tensor]]:
        """Return the run's weights with averages in place of parameters; a run that made no update has no averages."""
        return {"weights-ema.safetensors": {**weights, **kept}} if kept else {}


class Averages(Companion):
    """The averages of one stage's parameters."""

    def __init__(self, parameters: Mapping[str, Tensor], decay: float, every: int) -> None:
        self._parameters, self._decay, self._every = parameters, decay, every
        self._averages: dict[str, Tensor] = {}

    def updated(self, updates: int) -> None:
        """Move the averages towards the parameters, after every n-th update."""
        if updates % self._every:
            return
        if not self._averages:
            self._averages = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        elif self._parameters:
            averages = [self._averages[name] for name in self._parameters]
            torch._foreach_lerp_(averages, list(self._parameters.values()), 1 - self._decay)

    def state(self) -> Mapping[str, Tensor]:
        return self._averages

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self._averages = dict(tensors)
