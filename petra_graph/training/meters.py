"""The means over an epoch of what the head returns for each micro-batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from petra_graph.executor.reconstruct_recompute_stash import HeadResult


class Meters:
    """Sums of the head's results, whose means are over samples; the loss is weighted by each batch's own size."""

    def __init__(self) -> None:
        self.samples = 0
        self._sums: dict[str, float] = {}

    def add(self, result: HeadResult) -> None:
        """Add one batch."""
        self.samples += result.samples
        self._add("loss", float(result.loss) * result.samples)
        for name, value in result.metrics.items():
            self._add(name, float(value))

    def sums(self) -> Mapping[str, Any]:
        """Return the sums as JSON holds them."""
        return {"samples": self.samples, "sums": dict(self._sums)}

    def merge(self, other: Mapping[str, Any]) -> None:
        """Add the sums of another replica's meters."""
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
        return {name: total / self.samples for name, total in self._sums.items()} if self.samples else {}

    def _add(self, name: str, value: float) -> None:
        self._sums[name] = self._sums.get(name, 0.0) + value
