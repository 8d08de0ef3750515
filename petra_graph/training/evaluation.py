"""One evaluation of a split's samples: means, metrics, and what is not finite."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from petra_graph.errors import Problem, RunFailed, SpecError, at_path
from petra_graph.executor.head import HeadResult
from petra_graph.executor.update import MOST, floats
from petra_graph.plugins.contract import Plugin


class Measured(NamedTuple):
    """What an evaluation has found; nothing where the head is in another process."""

    samples: int
    means: Mapping[str, float]  # of the loss and its metrics, and of the run's metrics: "f1", "rates/recall"
    undefined: Mapping[str, float]  # the values of metrics that are not finite


def measure(results: Iterable[HeadResult], metrics: Sequence[Plugin], data: str, after: str = "") -> Measured:
    """Take the results of batches of the `data`, which new metrics see once each; a loss that is not finite `after` an epoch fails the run."""
    meters, built = Meters(), [(one, one.build()) for one in metrics]
    for number, result in enumerate(results, start=1):
        meters.add(result)
        if number % MOST == 0:  # what waits holds memory of the device
            meters.read()
        for one, metric in built:
            assert result.compared is not None
            with at_path(*one.path[:-1], "name"):
                metric.update(*result.compared)
    meters.expect_targets(data)
    means = meters.means()
    if after and not math.isfinite(means.get("loss", 0.0)):
        raise loss_failed(f"the {data.removesuffix(' data')} loss {after}", means["loss"])
    values: dict[str, float] = {}
    for one, metric in built if meters.samples else ():
        if one.recorded_as in means:
            message = f'{one} is recorded as "{one.recorded_as}", and the loss has values of that name'
            raise SpecError(Problem(message=message, hint="write recorded_as", path=(*one.path[:-1], "name")))
        found = metric.compute().items()
        values |= {f"{one.recorded_as}/{name}" if name else one.recorded_as: value for name, value in found}
    undefined = {name: value for name, value in values.items() if not math.isfinite(value)}
    finite = {name: value for name, value in values.items() if name not in undefined}
    return Measured(meters.samples, {**means, **finite}, undefined)


class Meters:
    """Sums of the head's results, which wait on their device until they are read. The mean of losses is over the weight of the targets, that of metrics over the number that they count."""

    def __init__(self) -> None:
        self.samples, self.weight, self.counted = 0, 0.0, 0.0
        self._sums: dict[str, float] = {}
        self._pending: list[HeadResult] = []

    def add(self, result: HeadResult) -> None:
        """Take one batch, without reading it."""
        self._sum(result.samples, result.weight, result.counted, {})
        self._pending.append(result._replace(compared=None))  # what was compared would stay in memory

    def read(self) -> Sequence[tuple[HeadResult, float]]:
        """Add the batches since the last reading to the sums, and return them with their losses."""
        pending, self._pending = self._pending, []
        losses = floats([result.loss for result in pending])
        names = dict.fromkeys(name for result in pending for name in result.metrics)
        values = {name: iter(floats([r.metrics[name] for r in pending if name in r.metrics])) for name in names}
        for result, loss in zip(pending, losses, strict=True):
            sums = {"loss": loss * result.weight, **{name: next(values[name]) for name in result.metrics}}
            self._sum(0, 0.0, 0.0, sums)
        return list(zip(pending, losses, strict=True))

    def sums(self) -> Mapping[str, Any]:
        self.read()
        return {"samples": self.samples, "weight": self.weight, "counted": self.counted, "sums": dict(self._sums)}

    def merge(self, other: Mapping[str, Any]) -> None:
        """Add the sums of other meters."""
        self.read()
        self._sum(**other)

    def _sum(self, samples: int, weight: float, counted: float, sums: Mapping[str, float]) -> None:
        self.samples, self.weight, self.counted = self.samples + samples, self.weight + weight, self.counted + counted
        for name, value in sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + value

    def means(self) -> Mapping[str, float]:
        """Return the mean of the loss, and of each metric as a fraction of the targets; zeros while no target has counted."""
        self.read()
        by = {name: self.weight if name == "loss" else self.counted for name in self._sums}
        return {name: total / by[name] if by[name] else 0.0 for name, total in self._sums.items()}

    def expect_targets(self, data: str) -> None:
        """Refuse batches of which no target has counted; `data` names them."""
        if self.samples and not self.weight:
            raise RunFailed(f"no target of the {data} counts: the loss gives all {self.samples} samples a weight of 0")


def loss_failed(what: str, value: float, first: float = math.nan) -> RunFailed:
    """Return the error of a loss that is not finite, or in training so far from the first one that it soon would not be."""
    than = f", and that of the first one was {first:.4g}" if math.isfinite(first) else ""
    hint = "lower the learning rate, lengthen the warm-up, clip gradients, use fewer stages, or look for samples that are not finite"
    return RunFailed(f"{what} is {value}{than}", hint)
