"""The fidelity of a run's gradients, read from its directory: a probe's measurements over the epochs and the stages.

A point is the mean of an epoch's measurements, as in the paper; in a run of few epochs, each measurement is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from statistics import fmean

from attrs import frozen

from petra_graph.errors import SpecError
from petra_graph.program.schedule import schedule_text
from petra_graph.record.metrics import read_events
from petra_graph.record.run_files import resolved_spec
from petra_graph_report.run.recorded_run import quantity_and_stage

_FEW_EPOCHS = 10
"""From this number of epochs on, points are means over an epoch."""
_EPOCHS_A_WINDOW = 30
"""The paper smooths 300 epochs over 10."""
_DROP = 0.5
"""A learning rate below this share of the previous epoch's has dropped."""


@frozen(kw_only=True)
class Point:
    """One quantity of one stage at one time."""

    epoch: int
    """Counted from 1."""
    at: float
    """The time in epochs since the run's start; the end of the epoch where the point is a mean."""
    value: float


@frozen(kw_only=True)
class FidelityHistory:
    """A run's fidelity from its first epoch to its latest."""

    name: str
    method: str
    settings: str
    """Schedule and accumulation, for people."""
    reconstructing: frozenset[int]
    """Stages that reconstruct an input."""
    points: Mapping[str, Mapping[int, Sequence[Point]]]
    """The points by quantity, as in `petra_graph.record.metrics`, and by stage."""
    learning_rates: Mapping[int, float]
    """The learning rates by finished epoch."""
    epochs: int
    """The latest epoch with a measurement."""
    averaged: bool
    """Whether points are means over an epoch."""

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

    @property
    def window(self) -> int:
        """The number of points over which a curve is smoothed."""
        return max(1, self.epochs // _EPOCHS_A_WINDOW) if self.averaged else 1

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


def fidelity_history(run: Path) -> FidelityHistory:
    """Gather a probe's measurements from a run's directory; the run may still be training.

    Raises:
        SpecError: the run does not exist, or it was not probed.
    """
    resolved = resolved_spec(run)
    measured: list[tuple[str, int, int, int, float]] = []
    rates: dict[int, float] = {}
    length = 0.0
    for event in read_events(run):
        epoch, step, name, value = event["epoch"], event["step"], event["name"], event["value"]
        if (probed := quantity_and_stage(name)) is not None:
            measured.append((*probed, epoch, step, value))
        elif name == "learning_rate":  # recorded where an epoch ends
            rates[epoch] = value
            length = step / epoch
    if not measured:
        message = f"{run} holds no measurement of a probe"
        raise SpecError(message, hint="train with a probe: petra-graph run SPEC --set probe.per_epoch=15")
    epochs = max(epoch for _, _, epoch, _, _ in measured)
    averaged = epochs >= _FEW_EPOCHS
    length = length or max(step for *_, step, _ in measured)
    timed = ((name, i, epoch, epoch if averaged else step / length, value) for name, i, epoch, step, value in measured)
    points: dict[str, dict[int, list[Point]]] = {}
    for (quantity, stage, epoch, at), group in groupby(sorted(timed), key=lambda timed: timed[:4]):
        point = Point(epoch=epoch, at=at, value=fmean(timed[4] for timed in group))
        points.setdefault(quantity, {}).setdefault(stage, []).append(point)
    method = resolved["method"]
    by_node = method.get("keep", {})
    keeps = {node["name"]: by_node.get(node["name"], method.get(node["kind"])) for node in resolved["graph"]["node"]}
    stages = enumerate(resolved["partition"]["stages"], start=1)
    return FidelityHistory(
        name=resolved["name"],
        method=method["name"],
        settings=f"{schedule_text(method['schedule'])}, accumulation {method['accumulation']}",
        reconstructing=frozenset(stage for stage, nodes in stages if "nothing" in map(keeps.get, nodes)),
        points=points,
        learning_rates=rates,
        epochs=epochs,
        averaged=averaged,
    )


def smooth(points: Sequence[Point], window: int) -> list[float]:
    """Return the rolling mean of values over `window` points around each; over fewer at the ends."""
    before, after = (window - 1) // 2, window // 2
    values = [point.value for point in points]
    return [fmean(values[max(0, at - before) : at + after + 1]) for at in range(len(values))]
