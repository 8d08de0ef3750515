"""Callbacks: an early end, an average of the parameters, and TensorBoard."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

import torch
from torch import Tensor

from petra_graph.plugins import AtLeast, Callback, Companion, EpochEnded, LessThan, Scale, Started, scale_of

Judged = Annotated[str | None, 'as in "validation/top1"; default: the loss of the evaluations']
Patience = Annotated[int, "epochs without a better value", AtLeast(1)]
Least = Annotated[float, "least difference that makes a value better", AtLeast(0)]
Decay = Annotated[float, "share of the average that is kept", AtLeast(0), LessThan(1)]


class EarlyStopping(Callback):
    """Ends the training after an epoch, once a metric has not become better for some epochs."""

    changes = "length"

    def __init__(self, *, metric: Judged = None, patience: Patience = 5, min_delta: Least = 0.0) -> None:
        if metric and not re.match("(train|validation|test)/.", metric):
            raise ValueError(f'metric names a split, as in "validation/top1" (got "{metric}")')
        self._metric, self._patience, self._min_delta = metric or "", patience, min_delta
        self._scales: Mapping[str, Scale] = {}
        self._best: float | None = None
        self._best_epoch = self._epoch = 0

    def started(self, run: Started) -> None:
        self._scales = run.metrics
        self._metric = self._metric or f"{run.evaluates}/loss"

    def epoch_ended(self, report: EpochEnded) -> None:
        """Compare the epoch's value with the best one; an epoch without an evaluation, or where a metric is undefined, has no value."""
        split, _, name = self._metric.partition("/")
        values = report.train if split == "train" else report.evaluated
        self._epoch = report.epoch
        if values is None or (name not in values and name.partition("/")[0] in self._scales):
            return
        sign = -1 if scale_of(self._metric, self._scales).better == "lower" else 1
        if self._best is None or sign * (values[name] - self._best) > self._min_delta:
            self._best, self._best_epoch = values[name], report.epoch

    def stops(self) -> str:
        if self._best is None or self._epoch - self._best_epoch < self._patience:
            return ""
        return f"{self._metric} is not better than {self._best:.6g}, of epoch {self._best_epoch}"

    def state(self) -> Any:
        return [self._best, self._best_epoch, self._epoch]

    def restore(self, state: Any) -> None:
        self._best, self._best_epoch, self._epoch = state


class Ema(Callback):
    """Exponential moving average of all parameters, written as `weights-ema.safetensors` at the end."""

    def __init__(self, *, decay: Decay = 0.999) -> None:
        self._decay = decay

    def at_stage(self, parameters: Mapping[str, Tensor]) -> Companion:
        return Averages(parameters, self._decay)

    def ended(self, weights: Mapping[str, Tensor], kept: Mapping[str, Tensor]) -> Mapping[str, Mapping[str, Tensor]]:
        """Return the run's weights with averages in place of parameters; a run that made no update has no averages."""
        return {"weights-ema.safetensors": {**weights, **kept}} if kept else {}


class Averages(Companion):
    """average <- decay * average + (1 - decay) * parameter after every update, from the parameters after the first one on.

    They are on the stage's device, and the plan's memory does not count them. Running statistics are not averaged.
    """

    def __init__(self, parameters: Mapping[str, Tensor], decay: float) -> None:
        self._parameters, self._decay = parameters, decay
        self._averages: dict[str, Tensor] = {}

    def updated(self, updates: int) -> None:
        if not self._averages:
            self._averages = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        elif self._parameters:
            averages = [self._averages[name] for name in self._parameters]
            torch._foreach_lerp_(averages, list(self._parameters.values()), 1 - self._decay)

    def state(self) -> Mapping[str, Tensor]:
        return self._averages

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self._averages = dict(tensors)


class TensorBoard(Callback):
    """Scalars for TensorBoard, in `tensorboard/` of the run's directory."""

    def started(self, run: Started) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # A resumed run opens another file, and tells TensorBoard to forget the events after the checkpoint.
        purge = {} if run.resumed_at is None else {"purge_step": run.resumed_at + 1}
        self._writer: Any = SummaryWriter(log_dir=str(run.directory / "tensorboard"), **purge)

    def record(self, *, epoch: int, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()
