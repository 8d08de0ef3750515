"""The weights that an evaluation reads, where a stage's optimizer says that they are others than those that it trains.

An optimizer without a schedule takes gradients at one point and is judged at another, an average (Defazio et al. 2024, "The Road Less
Scheduled", https://arxiv.org/abs/2405.15682). Its method `evaluated_weights(parameter)` returns the latter.

Decision: the parameters are given other memory for an evaluation, and then have their own again. Nothing is written to the trained
weights, so that they are the same bits with any number of evaluations, by construction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from petra_graph.errors import PluginError
from petra_graph.executor.stage_executor import StageExecutor
from petra_graph.executor.stage_parameters import exchanged
from petra_graph.executor.stage_update import Updater
from petra_graph.kinds.author_code import author_code
from petra_graph.kinds.optimizer import evaluated_weights_fault


@contextmanager
def evaluating(executors: Iterable[StageExecutor]) -> Iterator[None]:
    """Within the context, the modules of these stages have the weights in which they are evaluated.

    Raises:
        PluginError: an optimizer failed, or returned something else than weights.
    """
    with exchanged(pair for executor in executors for pair in evaluated_weights(executor.updater)):
        yield


def evaluated_weights(updater: Updater) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Yield each parameter of a stage with a copy of its evaluated weights, in its layout; nothing where the optimizer has none.

    Raises:
        PluginError: as `evaluating`.
    """
    evaluated = getattr(updater.optimizer, "evaluated_weights", None)
    if evaluated is None:
        return
    for parameter in updater.parameters:
        with torch.no_grad(), author_code(f"{updater.owner} failed to give the evaluated weights", training=True):
            weights = evaluated(parameter)
        if fault := evaluated_weights_fault(parameter, weights):
            raise PluginError(f"{updater.owner} is broken: {fault}", "return a tensor like the parameter")
        yield parameter, torch.empty_like(parameter.data).copy_(weights.detach())
