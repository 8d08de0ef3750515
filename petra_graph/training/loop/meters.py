"""The means over an epoch of what the head returns for each micro-batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve

from petra_graph.errors import RunFailed
from petra_graph.executor.deferred_reads import floats
from petra_graph.executor.head import HeadResult
from petra_graph.kinds.loss import expect_share
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
                value = next(values[name])
                expect_share(self._loss, name, value, result.samples, result.counted)
                self._add(name, value)
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
