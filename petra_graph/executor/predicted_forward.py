"""The parameters of a stage's forward in training, where its optimizer predicts those that the backward will find.

Micro-batch m is late by d(m) updates (`kinds.stage_facts`). Its forward uses `predicted_weights(d(m))` of the optimizer in place of the
stage's parameters. The backward reconstructs, recomputes and differentiates with the true ones, and evaluations, checkpoints and observers
know no others. Prediction for pipelines: SpecTrain (Chen et al. 2018, https://arxiv.org/abs/1809.02839).

    updates        0       1       2       3            depth 3, accumulation 1
    forwards    0 1 2      3       4       5
    d           0 1 2      2       2       2

Decision: the parameters are given other memory for a forward, and then have their own again, as in `evaluated_weights`. So the true ones
are the same bits by construction.

Decision: one prediction is held at a time. Between two updates d does not fall from one micro-batch to the next, so that each
delay is predicted once, and the one before it is needed no more. The update drops it, and a checkpoint does not hold it: it is made again
from the same parameters and state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from attrs import define, field
from torch import Tensor, nn

from petra_graph.errors import PluginError
from petra_graph.executor.stage_parameters import exchanged
from petra_graph.executor.stage_update import Updater
from petra_graph.kinds.author_code import author_code
from petra_graph.kinds.optimizer import PREDICTED, predicted_weights_fault


@define(eq=False)
class PredictedForward:
    """The predictions of one stage."""

    updater: Updater
    _delay: int = field(default=0, init=False)
    """Of the prediction that is held, in updates; 0: none is."""
    _predicted: Sequence[tuple[nn.Parameter, Tensor]] = field(default=(), init=False)

    @contextmanager
    def of(self, micro_batch: int) -> Iterator[None]:
        """Within the context, the stage's parameters have their predicted values, if the optimizer predicts and the micro-batch is late.

        Args:
            micro_batch: counted from the run's start.

        Raises:
            PluginError: the optimizer failed, or returned something else than parameters with tensors like them.
        """
        with exchanged(self._at(micro_batch)):
            yield

    def drop(self) -> None:
        """Forget the prediction: the parameters change next."""
        self._delay, self._predicted = 0, ()

    def delay_of(self, micro_batch: int) -> int:
        """Return by how many updates the forward of a micro-batch is predicted ahead; 0: it uses the stage's own parameters."""
        predict, stage = getattr(self.updater.optimizer, PREDICTED, None), self.updater.stage
        return 0 if predict is None or stage is None else stage.staleness(micro_batch)

    def _at(self, micro_batch: int) -> Sequence[tuple[nn.Parameter, Tensor]]:
        if not (delay := self.delay_of(micro_batch)):
            return ()
        predict = getattr(self.updater.optimizer, PREDICTED)
        if delay != self._delay:
            self.drop()  # before another one takes memory
            self._predicted, self._delay = self._made(predict, delay), delay
        return self._predicted

    def _made(self, predict: Callable[[int], Any], delay: int) -> Sequence[tuple[nn.Parameter, Tensor]]:
        updater = self.updater
        with torch.no_grad(), author_code(f"{updater.owner} failed to predict {delay} updates ahead", training=True):
            predicted = predict(delay)
        if fault := predicted_weights_fault(updater.parameters, predicted):
            raise PluginError(
                f"{updater.owner} is broken: {fault}",
                "return a list of (parameter, tensor), each tensor like its parameter, with memory of its own",
            )
        return [(parameter, _laid_out(weights.detach(), parameter)) for parameter, weights in predicted]


def _laid_out(weights: Tensor, parameter: nn.Parameter) -> Tensor:
    """Return weights in the layout of their parameter, since kernels round differently in others."""
    if weights.stride() == parameter.stride():
        return weights
    return torch.empty_like(parameter.data).copy_(weights)
