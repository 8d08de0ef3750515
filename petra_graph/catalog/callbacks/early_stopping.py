"""The end of a training that does not become better; a resumed run keeps its count of the epochs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from petra_graph.errors import RunFailed, suggestion
from petra_graph.plugins import AtLeast, Callback, EpochEnded, Scale, Started, scale_of


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
