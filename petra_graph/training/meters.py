"""The means over an epoch of what the head returns for each micro-batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve

from petra_graph.errors import PluginError
from petra_graph.executor.deferred_reads import floats
from petra_graph.executor.reconstruct_recompute_stash import HeadResult
from petra_graph.record.metrics import is_share

_ROUNDING = 1e-3
"""Of a share that is a mean over a sample's targets, in float32."""


class Meters:
    """Sums of the head's results, whose means are over samples; the loss is weighted by each batch's own size.

    Results wait on their device until they are read.
    """

    def __init__(self, loss: str = "the loss") -> None:
        """Begin without a batch; `loss` is the plugin's name in messages."""
        self._loss = loss
        self.samples = 0
        self._sums: dict[str, float] = {}
        self._pending: list[HeadResult] = []

    def add(self, result: HeadResult) -> None:
        """Take one batch, without reading it."""
        self.samples += result.samples
        self._pending.append(evolve(result, evaluated=None))  # what was compared would stay in memory

    def read(self) -> Sequence[tuple[HeadResult, float]]:
        """Add the batches since the last reading to the sums, and return them with their losses.

        Raises:
            PluginError: a metric that is a share of the samples counts more than all of them, or less than none.
        """
        pending, self._pending = self._pending, []
        losses = floats([result.loss for result in pending])
        names = dict.fromkeys(name for result in pending for name in result.metrics)
        values = {name: iter(floats([r.metrics[name] for r in pending if name in r.metrics])) for name in names}
        for result, loss in zip(pending, losses, strict=True):
            self._add("loss", loss * result.samples)
            for name in result.metrics:
                value = next(values[name])
                self._expect_share(name, value, result.samples)
                self._add(name, value)
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
    def of(cls, sums: Mapping[str, Any], loss: str = "the loss") -> Meters:
        """Return meters with these sums."""
        meters = cls(loss)
        meters.samples, meters._sums = sums["samples"], dict(sums["sums"])
        return meters

    def means(self) -> Mapping[str, float]:
        """Return the mean of the loss, and of each metric as a fraction of the samples."""
        self.read()
        return {name: total / self.samples for name, total in self._sums.items()} if self.samples else {}

    def _expect_share(self, name: str, value: float, samples: int) -> None:
        share = value / samples
        if is_share(name) and (share < -_ROUNDING or share > 1 + _ROUNDING):
            message = (
                f'{self._loss} is broken: its metric "{name}" is {value:g} of {samples} samples, a share of {share:.2%}'
            )
            hint = (
                "count each sample at most once; where a sample has many targets, add the share of them that are right"
            )
            raise PluginError(message, hint)

    def _add(self, name: str, value: float) -> None:
        self._sums[name] = self._sums.get(name, 0.0) + value
