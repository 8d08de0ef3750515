"""Other parameters than a stage's own: copies of older ones, and those that its optimizer gives for one pass.

    `predicted_weights(d(m))`   the forward of micro-batch m, which is late by d(m) updates (`kinds.stage_facts`), uses the parameters that its
                                backward is expected to find: weight prediction, SpecTrain (Chen et al. 2018,
                                https://arxiv.org/abs/1809.02839)
    `earlier_weights(d(m))`     the backward uses an estimate of those that the forward had, to reconstruct, to recompute and to
                                differentiate: discrepancy correction, PipeMare (Yang et al. 2021, https://arxiv.org/abs/1910.05124)
    `evaluated_weights(p)`      evaluations and files of weights: an optimizer without a schedule takes gradients at one point and is judged
                                at another, an average (Defazio et al. 2024, https://arxiv.org/abs/2405.15682)

The stage's true parameters take part in all other passes and in steps, and are those of checkpoints. Gradients are added to their `grad`,
wherever they were taken.

    updates        0       1       2       3            depth 3, accumulation 1
    forwards    0 1 2      3       4       5
    d           0 1 2      2       2       2

Decision: the parameters are given other memory for a pass, so that not a bit of the true ones changes. One answer for a delay is held at a
time, until the update: between two updates, d of the forwards does not fall, and d of the backwards does not rise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import TYPE_CHECKING

import torch
from attrs import define, field
from torch import Tensor, nn

from petra_graph.executor.update import Updater
from petra_graph.plugins.author_code import noted
from petra_graph.program.schedule import WeightVersions

if TYPE_CHECKING:
    from petra_graph.executor.stage import StageExecutor

Parameters = Mapping[str, Mapping[str, Tensor]]
"""By node, then by the parameter's name in its module."""
ParameterVersions = WeightVersions[Parameters]
"""One stage's parameters over time."""


def copied_parameters(modules: Mapping[str, nn.Module]) -> Parameters:
    copied = cache(lambda parameter: parameter.detach().clone())  # nodes of a stage may share one
    return {
        name: {key: copied(parameter) for key, parameter in module.named_parameters()}
        for name, module in modules.items()
    }


@contextmanager
def exchanged(values: Iterable[tuple[nn.Parameter, Tensor]]) -> Iterator[None]:
    """Within the context, parameters have other memory; then they have their own again, so that not a bit of it changes.

    Gradients are added to their own `grad` all the while.
    """
    own: list[tuple[nn.Parameter, Tensor]] = []
    try:
        for parameter, value in values:
            own.append((parameter, parameter.data))
            parameter.data = value
        yield
    finally:
        for parameter, data in reversed(own):  # nodes of a stage may share one
            parameter.data = data


def having(modules: Mapping[str, nn.Module], parameters: Parameters) -> AbstractContextManager[None]:
    """Return a context in which modules have these parameters in place of their own."""
    return exchanged(
        (own, parameters[name][key].detach())
        for name, module in modules.items()
        for key, own in module.named_parameters()
    )


@define(eq=False)
class DelayedWeights:
    """The answers of one stage's optimizer to one of the first two questions."""

    updater: Updater
    method: str
    """Of the optimizer: `PREDICTED` or `EARLIER` of `kinds.optimizer`."""
    _delay: int = field(default=0, init=False)
    """Of the answer that is held, in updates; 0: none is."""
    _weights: Sequence[tuple[nn.Parameter, Tensor]] = field(default=(), init=False)

    def of(self, micro_batch: int) -> AbstractContextManager[None]:
        """Within the context, the stage's parameters have these values, if the micro-batch is late."""
        delay = self.delay_of(micro_batch)
        if delay != self._delay:
            self.drop()  # before another one takes memory
        if delay and not self._delay:
            found, owner = [], f"{self.updater.owner}, at {self.method}({delay})"
            with torch.no_grad(), noted(owner):
                for parameter, weights in getattr(self.updater.optimizer, self.method)(delay):
                    # In the layout of the parameter, since kernels round differently in others.
                    alike = weights.stride() == parameter.stride()
                    found.append((parameter, weights.detach() if alike else torch.empty_like(parameter).copy_(weights)))
            self._weights, self._delay = found, delay
        return exchanged(self._weights)

    def drop(self) -> None:
        """Forget the answer: the parameters change next."""
        self._delay, self._weights = 0, ()

    def delay_of(self, micro_batch: int) -> int:
        """Return the delay in updates for which the optimizer is asked; 0: the pass has the stage's own parameters."""
        stage = self.updater.stage
        return 0 if stage is None else stage.staleness(micro_batch)


@contextmanager
def evaluating(executors: Iterable[StageExecutor]) -> Iterator[None]:
    """Within the context, the modules of these stages have the weights in which they are evaluated."""
    with exchanged(pair for executor in executors for pair in evaluated_weights(executor.updater)):
        yield


def evaluated_weights(updater: Updater) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Yield each parameter of a stage with a copy of its evaluated weights, in its layout; nothing where the optimizer has none."""
    evaluated = getattr(updater.optimizer, "evaluated_weights", None)
    if evaluated is None:
        return
    for parameter in updater.parameters:
        with torch.no_grad(), noted(f"{updater.owner}, at its evaluated weights"):
            weights = evaluated(parameter)
        yield parameter, torch.empty_like(parameter.data).copy_(weights.detach())
