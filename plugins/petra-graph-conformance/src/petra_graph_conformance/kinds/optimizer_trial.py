"""An optimizer with small parameters of a stage, which it steps as the executor lets it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, nn

from petra_graph.kinds.optimizer import (
    OPTIMIZER,
    ParameterGroups,
    asks_for_delay,
    rate_ratios,
    set_rates,
)
from petra_graph.kinds.plugin_kind import PluginKind
from petra_graph_conformance.plugin_trial import StageTrial

_DECAYED, _UNDECAYED = ((4, 3), (2, 3, 3, 3)), ((4,), (2,))
STEPS = 4
"""Before something changes, and after it."""
LATER = 25
"""What shows late: a look-ahead at every tenth step, a count that is not kept."""
RATE = 0.01
"""The rate of a trial, where the options' own rate is 0."""
Rate = Callable[[int], float]


@frozen(kw_only=True)
class OptimizerTrial(StageTrial):
    """An optimizer with options.

    Attributes:
        plugin: the optimizer.
        options: an instance of its own options class.
        stages: as of `StageTrial`.
        decayed: shapes of the parameters to which weight decay applies.
        undecayed: shapes of the others.
        seed: parameters and gradients follow from it.
    """

    decayed: Sequence[Sequence[int]] = _DECAYED
    undecayed: Sequence[Sequence[int]] = _UNDECAYED
    seed: int = 0

    @staticmethod
    def of_kind() -> PluginKind:
        return OPTIMIZER

    @property
    def asks(self) -> bool:
        """Whether it asks for the facts of its stage, or what it builds needs delays."""
        return asks_for_delay(self.plugin, self.options)

    @property
    def base(self) -> float:
        """The base learning rate."""
        return float(self.options.lr) or RATE

    def parameters(self) -> ParameterGroups:
        """Return new parameters, the same at every call."""
        from torch import nn

        generator = torch.Generator().manual_seed(self.seed)

        def drawn(shapes: Sequence[Sequence[int]]) -> list[nn.Parameter]:
            return [nn.Parameter(torch.randn(tuple(shape), generator=generator)) for shape in shapes]

        return ParameterGroups(decayed=drawn(self.decayed), undecayed=drawn(self.undecayed))

    def stage(self) -> Stage:
        """Return a stage's parameters with a new optimizer of them."""
        groups = self.parameters()
        optimizer = self.build_raw(groups, self.options)
        return Stage(
            groups=groups,
            optimizer=optimizer,
            ratios=rate_ratios(optimizer, self.options.lr),
            trial=self,
        )


@frozen(kw_only=True, eq=False)
class Stage:
    groups: ParameterGroups
    optimizer: torch.optim.Optimizer
    ratios: Sequence[float]
    trial: OptimizerTrial

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [*self.groups.decayed, *self.groups.undecayed]

    def values(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.parameters]

    def evaluated_weights(self) -> list[Any]:
        """Return copies of what the optimizer returns for each parameter."""
        with torch.no_grad():
            found = [self.optimizer.evaluated_weights(parameter) for parameter in self.parameters]  # type: ignore[attr-defined]
        return [one.detach().clone() if isinstance(one, torch.Tensor) else one for one in found]

    def weights_of_delay(self, method: str, delay: int) -> Any:
        """Return what the optimizer's `PREDICTED` or `EARLIER` returns."""
        with torch.no_grad():
            return getattr(self.optimizer, method)(delay)

    def step(self, steps: Iterable[int], rate: Rate | None = None, without: Collection[int] = ()) -> None:
        """Take steps as the executor does; parameters `without` have no gradient."""
        for number in steps:
            generator = torch.Generator().manual_seed(self.trial.seed + 1 + number)
            for index, parameter in enumerate(self.parameters):
                gradient = torch.randn(parameter.shape, generator=generator)
                parameter.grad = None if index in without else gradient
            self.set(self.trial.base if rate is None else rate(number), number)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    def set(self, rate: float, number: int) -> None:
        """Set what the executor sets before each step."""
        set_rates(self.optimizer, rate, self.ratios, self.trial.facts.staleness_of_update(number))
