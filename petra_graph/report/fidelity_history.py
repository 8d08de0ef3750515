"""The measurements of a run's probe, over the epochs and over the stages (the paper's Figures 5 and 6, as numbers).

A point is the mean of an epoch's measurements, as in the paper; in a run of few epochs, each measurement is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from attrs import frozen

from petra_graph.record.metrics import quantity_and_stage

_FEW_EPOCHS = 10
"""From so many epochs on, points are means over an epoch."""
_DROP = 0.5
"""A learning rate below this share of the previous epoch's has dropped."""


@frozen(kw_only=True)
class Point:
    """One quantity of one stage at one time."""

    epoch: int
    """Counted from 1."""
    at: float
    """In epochs since the run's start; the end of the epoch where it is a mean."""
    value: float


@frozen(kw_only=True)
class FidelityHistory:
    """A run's fidelity from its first epoch to its latest."""

    points: Mapping[str, Mapping[int, Sequence[Point]]]
    """By quantity, as in `petra_graph.record.metrics`, and stage."""
    learning_rates: Mapping[int, float]
    """By finished epoch."""
    epochs: int
    """The latest with a measurement."""
    averaged: bool
    """Points are means over an epoch."""

    @property
    def stages(self) -> tuple[int, ...]:
        """All stages with a measurement."""
        return tuple(sorted({stage for of_quantity in self.points.values() for stage in of_quantity}))

    @property
    def drops(self) -> tuple[int, ...]:
        """The epochs before which the learning rate dropped."""
        return tuple(
            epoch
            for (_, before), (epoch, rate) in pairwise(sorted(self.learning_rates.items()))
            if rate < _DROP * before
        )

    def at_epoch(self, quantity: str, epoch: int) -> Mapping[int, float]:
        """Return an epoch's mean of a quantity by stage."""
        found = {
            stage: [point.value for point in points if point.epoch == epoch]
            for stage, points in self.points.get(quantity, {}).items()
        }
        return {stage: fmean(values) for stage, values in sorted(found.items()) if values}

    def chosen_epochs(self) -> tuple[int, ...]:
        """Return up to four epochs to look at: early, and before and after drops of the learning rate."""
        ends = sorted({*(epoch - 1 for epoch in self.drops), self.epochs})
        early = max(1, ends[0] // 4)
        if len(ends) > 1:
            return tuple(sorted({early, *ends[:2], ends[-1]}))
        return tuple(sorted({max(1, self.epochs * quarter // 4) for quarter in (1, 2, 3, 4)}))


def fidelity_history(events: Iterable[Mapping[str, Any]]) -> FidelityHistory | None:
    """Gather a probe's measurements from a run's events; None where there are none.

    Args:
        events: as `petra_graph.record.metrics` writes them, those without a value left out.
    """
    measured: list[tuple[str, int, int, int, float]] = []
    rates: dict[int, float] = {}
    length = 0.0
    for event in events:
        epoch, step, name, value = event["epoch"], event["step"], event["name"], event["value"]
        if (probed := quantity_and_stage(name)) is not None:
            measured.append((*probed, epoch, step, value))
        elif name == "learning_rate":  # recorded where an epoch ends
            rates[epoch] = value
            length = step / epoch
    if not measured:
        return None
    epochs = max(epoch for _, _, epoch, _, _ in measured)
    averaged = epochs >= _FEW_EPOCHS
    length = length or max(step for *_, step, _ in measured)
    grouped: dict[tuple[str, int, int, float], list[float]] = {}
    for quantity, stage, epoch, step, value in measured:
        at = float(epoch) if averaged else step / length
        grouped.setdefault((quantity, stage, epoch, at), []).append(value)
    points: dict[str, dict[int, list[Point]]] = {}
    for (quantity, stage, epoch, at), values in sorted(grouped.items()):
        point = Point(epoch=epoch, at=at, value=fmean(values))
        points.setdefault(quantity, {}).setdefault(stage, []).append(point)
    return FidelityHistory(points=points, learning_rates=rates, epochs=epochs, averaged=averaged)


def smoothed(points: Sequence[Point], window: int) -> list[float]:
    """Return the rolling mean of values over `window` points around each; of fewer at the ends."""
    before, after = (window - 1) // 2, window // 2
    values = [point.value for point in points]
    return [fmean(values[max(0, at - before) : at + after + 1]) for at in range(len(values))]


def history_numbers(history: FidelityHistory) -> dict[str, Any]:
    """Return the means of every epoch as JSON holds them: by quantity and stage, one value an epoch."""
    epochs = range(1, history.epochs + 1)
    return {
        "epochs": history.epochs,
        "stages": list(history.stages),
        "learning rate": {str(epoch): rate for epoch, rate in history.learning_rates.items()},
        "means by epoch": {
            quantity: {
                str(stage): [history.at_epoch(quantity, epoch).get(stage) for epoch in epochs] for stage in of_quantity
            }
            for quantity, of_quantity in history.points.items()
        },
    }
