"""Callbacks: an early end, an average of the parameters, and TensorBoard.

The average is kept with each stage, in the process of that stage:

    average <- decay * average + (1 - decay) * parameter        after every n-th update of the stage

It begins with the parameters after the first such update, and is on the stage's device: the size of its parameters again, which the plan's
memory does not count. Running statistics are not averaged: the file has those of the run. In it the averages have the names that parameters have in
`weights.safetensors`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from petra_graph.errors import RunFailed, cannot_write, suggestion
from petra_graph.plugins import AtLeast, Callback, Companion, EpochEnded, LessThan, Scale, Started, scale_of


def _of_evaluations(metric: str) -> None:
    if not metric.startswith(("train/", "validation/", "test/")):
        raise ValueError('must begin with "train/", "validation/" or "test/", as in "validation/top1"')


class EarlyStopping(Callback):
    """Ends the training after an epoch, once a metric has not become better for some epochs."""

    changes = "length"

    def __init__(
        self,
        *,
        metric: Annotated[
            str | None,
            'metric of an epoch, as in "validation/top1" or "test/top1"; default: the loss of the evaluations, which read the validation '
            "data or, without `data.validation`, the test data",
            _of_evaluations,
        ] = None,
        direction: Annotated[
            Literal["largest", "smallest"] | None,
            "which value is best; default: the smallest loss, of a listed metric what it declares, the largest of any other",
        ] = None,
        patience: Annotated[int, "epochs without a better value", AtLeast(1)] = 5,
        min_delta: Annotated[float, "least difference that makes a value better", AtLeast(0)] = 0.0,
    ) -> None:
        self._asked, self._direction, self._patience, self._min_delta = metric, direction, patience, min_delta
        self._metric = metric or "test/loss"  # until the run says which data its evaluations read
        self._scales: Mapping[str, Scale] = {}
        self._best: float | None = None
        self._best_epoch = 0
        self._epoch = 0

    def started(self, run: Started) -> None:
        self._scales = run.metrics
        self._metric = self._asked or f"{run.evaluates}/loss"

    def epoch_ended(self, report: EpochEnded) -> None:
        """Compare the epoch's value with the best one; an epoch without an evaluation, or where a metric is undefined, has no value.

        Raises:
            RunFailed: the run does not record this metric.
        """
        split, _, name = self._metric.partition("/")
        values = report.train if split == "train" else report.evaluated
        self._epoch = report.epoch
        if values is None or (name not in values and name.partition("/")[0] in self._scales):
            return
        if name not in values:
            raise RunFailed(
                f'callback "early-stopping" finds no metric {self._metric!r}',
                suggestion(self._metric, [f"{split}/{one}" for one in values]),
            )
        direction = self._direction or scale_of(self._metric, self._scales).largest_or_smallest
        sign = -1 if direction == "smallest" else 1
        if self._best is None or sign * (values[name] - self._best) > self._min_delta:
            self._best, self._best_epoch = values[name], report.epoch

    def stops(self) -> str:
        """Stop when as many epochs as the patience have passed since the best one."""
        if self._best is None or self._epoch - self._best_epoch < self._patience:
            return ""
        return f"{self._metric} is not better than {self._best:.6g}, of epoch {self._best_epoch}"

    def state(self) -> Any:
        return [self._best, self._best_epoch, self._epoch]

    def restore(self, state: Any) -> None:
        self._best, self._best_epoch, self._epoch = state


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


class TensorBoard(Callback):
    """Scalars for TensorBoard, in `tensorboard/` of the run's directory.

    A resumed run opens another file, and tells TensorBoard to forget the events after the checkpoint (`purge_step`).
    """

    def started(self, run: Started) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._path = run.directory / "tensorboard"
        purge = {} if run.resumed_at is None else {"purge_step": run.resumed_at + 1}
        self._writer: Any = SummaryWriter(log_dir=str(self._path), **purge)

    def record(self, *, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Write scalars.

        Raises:
            RunFailed: the disk refused these events or earlier ones.
        """
        with _writing(self._path):
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close; errors as of `record`."""
        with _writing(self._path):
            self._writer.close()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error
