"""The means over an epoch of what the head returns for each micro-batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve

from petra_graph.executor.deferred_reads import floats
from petra_graph.executor.reconstruct_recompute_stash import HeadResult


class Meters:
    """Sums of the head's results, whose means are over samples; the loss is weighted by each batch's own size.

    Results wait on their device until they are read.
    """

    def __init__(self) -> None:
        self.samples = 0
        self._sums: dict[str, float] = {}
        self._pending: list[HeadResult] = []

    def add(self, result: HeadResult) -> None:
        """Take one batch, without reading it."""
        self.samples += result.samples
        self._pending.append(evolve(result, evaluated=None))  # what was compared would stay in memory

    def read(self) -> Sequence[tuple[HeadResult, float]]:
        """Add the batches since the last reading to the sums, and return them with their losses."""
        pending, self._pending = self._pending, []
        losses = floats([result.loss for result in pending])
        names = dict.fromkeys(name for result in pending for name in result.metrics)
        values = {name: iter(floats([r.metrics[name] for r in pending if name in r.metrics])) for name in names}
        for result, loss in zip(pending, losses, strict=True):
            self._add("loss", loss * result.samples)
            for name in result.metrics:
                self._add(name, next(values[name]))
        return list(zip(pending, losses, strict=True))

    def sums(self) -> Mapping[str, Any]:
        """Return the sums as JSON holds them."""
        self.read()
        return {"samples": self.samples, "sums": dict(self._sums)}

    def merge(self, other: Mapping[str, Any]) -> None:
        """Add the sums of another replica's meters."""
        self.read()
        self.samples += other["samples"]
        for name, value in other["sums"].items():
            self._add(name, value)

    @classmethod
    def of(cls, sums: Mapping[str, Any]) -> Meters:
        """Return meters with these sums."""
        meters = cls()
        meters.samples, meters._sums = sums["samples"], dict(sums["sums"])
        return meters

    def means(self) -> Mapping[str, float]:
        """Return the mean of the loss, and of each metric as a fraction of the samples."""
        self.read()
        return {name: total / self.samples for name, total in self._sums.items()} if self.samples else {}

    def _add(self, name: str, value: float) -> None:
        self._sums[name] = self._sums.get(name, 0.0) + value
