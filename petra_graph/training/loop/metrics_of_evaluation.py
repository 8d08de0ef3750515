"""The metrics of one evaluation: new ones, which see every batch once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen
from torch import Tensor

from petra_graph.errors import Problem, SpecError, at_path
from petra_graph.planning.check.checked_spec import ConfiguredPlugin


@frozen
class MetricsOfEvaluation:
    """Metrics as they were built, each in a guard that names it."""

    configured: Sequence[ConfiguredPlugin]
    metrics: Sequence[Any]

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
        problems = list(self._taken(frozenset(of_loss)))
        if problems:
            raise SpecError(problems)
        return {
            f"{one.label}/{name}" if name else one.label: value
            for one, metric in zip(self.configured, self.metrics, strict=True)
            for name, value in metric.compute().items()
        }

    def _taken(self, of_loss: frozenset[str]) -> Iterator[Problem]:
        for one in self.configured:
            if one.label in of_loss:
                message = f'{one.plugin} is recorded as "{one.label}", and the loss has values of that name'
                hint = f'record it under another name: recorded_as = "{one.label}-2"'
                yield Problem(message=message, hint=hint, path=(*one.path[:-1], "name"))


def defined(values: Mapping[str, float]) -> tuple[Mapping[str, float], Sequence[str]]:
    """Return the values that are finite, and the others in words: "auc is nan"."""
    others = [f"{name} is {value}" for name, value in values.items() if not math.isfinite(value)]
    return {name: value for name, value in values.items() if math.isfinite(value)}, others
