"""The means over an epoch or an evaluation of what the head returns for each micro-batch, and the metrics of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen
from torch import Tensor

from petra_graph.errors import Problem, RunFailed, SpecError, at_path
from petra_graph.executor.deferred_reads import floats
from petra_graph.executor.head import HeadResult
from petra_graph.planning.check.checked_spec import ConfiguredPlugin
from petra_graph.units import plural


class Meters:
    """Sums of the head's results. The mean of losses is over the weight of the targets, that of metrics over the number that they count.

    Results wait on their device until they are read.
    """

    def __init__(self, loss: str = "the loss") -> None:
        """Begin without a batch; `loss` is the plugin's name in messages."""
        self._loss = loss
        self.samples = 0
        self.weight, self.counted = 0.0, 0.0
        self._sums: dict[str, float] = {}
        self._pending: list[HeadResult] = []

    def add(self, result: HeadResult) -> None:
        """Take one batch, without reading it."""
        self.samples += result.samples
        self.weight += result.weight
        self.counted += result.counted
        self._pending.append(evolve(result, evaluated=None))  # what was compared would stay in memory

    def read(self) -> Sequence[tuple[HeadResult, float]]:
        """Add the batches since the last reading to the sums, and return them with their losses."""
        pending, self._pending = self._pending, []
        losses = floats([result.loss for result in pending])
        names = dict.fromkeys(name for result in pending for name in result.metrics)
        values = {name: iter(floats([r.metrics[name] for r in pending if name in r.metrics])) for name in names}
        for result, loss in zip(pending, losses, strict=True):
            self._add("loss", loss * result.weight)
            for name in result.metrics:
                self._add(name, next(values[name]))
        return list(zip(pending, losses, strict=True))

    def sums(self) -> Mapping[str, Any]:
        self.read()
        return {"samples": self.samples, "weight": self.weight, "counted": self.counted, "sums": dict(self._sums)}

    def merge(self, other: Mapping[str, Any]) -> None:
        """Add the sums of other meters."""
        self.read()
        self.samples += other["samples"]
        self.weight += other["weight"]
        self.counted += other.get("counted", other["weight"])  # which is newer than checkpoints of this format
        for name, value in other["sums"].items():
            self._add(name, value)

    def means(self) -> Mapping[str, float]:
        """Return the mean of the loss, and of each metric as a fraction of the targets; zeros while no target has counted."""
        self.read()
        by = {name: self.weight if name == "loss" else self.counted for name in self._sums}
        return {name: total / by[name] if by[name] else 0.0 for name, total in self._sums.items()}

    def expect_targets(self, data: str) -> None:
        """Refuse batches of which no target has counted; `data` names them."""
        if self.samples and not self.weight:
            message = (
                f"no target of the {data} counts: {self._loss} gives {plural(self.samples, 'sample')} a weight of 0"
            )
            raise RunFailed(message, hint="targets of -100 are passed over; give some samples other targets")

    def _add(self, name: str, value: float) -> None:
        self._sums[name] = self._sums.get(name, 0.0) + value


@frozen
class MetricsOfEvaluation:
    """The metrics of one evaluation: new ones, which see every batch once."""

    configured: Sequence[ConfiguredPlugin]
    metrics: Sequence[Any]
    """The metrics as they were built, each in a guard that names it."""

    @classmethod
    def of(cls, configured: Sequence[ConfiguredPlugin]) -> MetricsOfEvaluation:
        """Build the metrics.

        Raises:
            SpecError: one refuses its options.
            PluginError: its code failed, or it breaks the contract.
        """
        return cls(configured, [one.build() for one in configured])

    def update(self, output: Tensor, target: Tensor) -> None:
        """Show a batch to all metrics.

        Raises:
            PluginError: one cannot compare them.
        """
        for one, metric in zip(self.configured, self.metrics, strict=True):
            with at_path(*one.path[:-1], "name"):
                metric.update(output, target)

    def values(self, of_loss: Iterable[str]) -> Mapping[str, float]:
        """Return all values by the names under which they are recorded, NaN among them: "f1", or "rates/recall".

        Raises:
            SpecError: the loss has values of the same name.
        """
        taken = set(of_loss)
        problems = [
            Problem(
                message=f'{one.plugin} is recorded as "{one.label}", and the loss has values of that name',
                hint=f'record it under another name: recorded_as = "{one.label}-2"',
                path=(*one.path[:-1], "name"),
            )
            for one in self.configured
            if one.label in taken
        ]
        if problems:
            raise SpecError(problems)
        return {
            f"{one.label}/{name}" if name else one.label: value
            for one, metric in zip(self.configured, self.metrics, strict=True)
            for name, value in metric.compute().items()
        }


def split_undefined(values: Mapping[str, float]) -> tuple[Mapping[str, float], Sequence[str]]:
    """Return the values that are finite, and the others in words: "auc is nan"."""
    others = [f"{name} is {value}" for name, value in values.items() if not math.isfinite(value)]
    return {name: value for name, value in values.items() if math.isfinite(value)}, others
