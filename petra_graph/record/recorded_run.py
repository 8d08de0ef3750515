"""A run's directory as a reader finds it: done, under way, failed, killed; without torch.

done, interrupted, failed     as its summary says
running                       a process holds the directory's lock
killed                        neither: no process was left that could write a summary
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from petra_graph.plugins.loss_and_metric import Scale, scale_of, scales_in
from petra_graph.record.metrics import read_events
from petra_graph.record.run_directory import SCALES, is_locked
from petra_graph.record.run_files import read_json, resolved_spec
from petra_graph.record.run_folders import no_run

_PROBE_METRIC = re.compile(r"probe/(?P<quantity>\w+)/stage-(?P<stage>\d+)")


@frozen(kw_only=True)
class Point:
    """A metric's value."""

    epoch: int
    step: int
    """Micro-batches since the run's start."""
    value: float


@frozen(kw_only=True)
class Best:
    """The best value of the metric by which a run is judged, and the epoch that it is of."""

    metric: str
    value: float
    epoch: int
    smallest: bool
    """Whether the smallest value is the best one."""


@define(kw_only=True)
class RecordedRun:
    """A run that has begun to train."""

    directory: Path
    resolved: Mapping[str, Any]
    """The specification with every default."""
    summary: Mapping[str, Any]
    """Of its latest end; empty where it has none."""
    metrics: Mapping[str, Sequence[Point]]
    """The events by name, in order."""
    running: bool
    scales: Mapping[str, Scale] = field(factory=dict)
    """How the values of its metrics are read."""

    @property
    def name(self) -> str:
        """Of the specification."""
        return str(self.resolved["name"])

    @property
    def status(self) -> str:
        """How the run stands, as above."""
        return "running" if self.running else str(self.summary.get("status", "killed"))

    @property
    def seed(self) -> int:
        """From which its weights and its order of samples follow."""
        return int(self.resolved["run"]["seed"])

    @property
    def rate(self) -> float | None:
        """Samples a second: of all its training, or of its latest epoch where it has no summary."""
        return self.summary.get("samples_per_second") or self.last("samples_per_second")

    @property
    def epochs(self) -> int:
        return max((points[-1].epoch for name, points in self.metrics.items() if name == "learning_rate"), default=0)

    @property
    def planned_epochs(self) -> int:
        return int(self.resolved["run"]["epochs"])

    @property
    def best(self) -> Best | None:
        """The best value of `checkpoint.best`, or of top1 or else the loss of the evaluations; None where none was measured yet.

        Evaluations are those of the validation samples or, without `data.validation`, of the test samples.
        """
        checkpoint = self.resolved.get("checkpoint", {})
        split = "validation" if "validation" in self.resolved.get("data", {}) else "test"
        names = (f"{split}/top1", f"{split}/loss")
        metric = checkpoint.get("best") or next((name for name in names if name in self.metrics), None)
        if metric is None or not self.metrics.get(metric):
            return None
        which = checkpoint.get("best_is") or scale_of(metric, self.scales).largest_or_smallest
        smallest = which == "smallest"
        found = min(self.metrics[metric], key=lambda point: point.value if smallest else -point.value)
        return Best(metric=metric, value=found.value, epoch=found.epoch, smallest=smallest)

    def last(self, metric: str) -> float | None:
        """Return the latest value of a metric."""
        points = self.metrics.get(metric)
        return points[-1].value if points else None


def read_run(directory: Path) -> RecordedRun:
    """Read a run's directory; the run may still be training.

    Raises:
        SpecError: this is not a run's directory, or one of its files is damaged.
    """
    if not directory.is_dir():
        raise no_run(directory)
    resolved = resolved_spec(directory)
    metrics: dict[str, list[Point]] = {}
    for event in read_events(directory):
        point = Point(epoch=event["epoch"], step=event["step"], value=event["value"])
        metrics.setdefault(event["name"], []).append(point)
    return RecordedRun(
        directory=directory,
        resolved=resolved,
        summary=read_json(directory / "summary.json", dict) or {},
        metrics=metrics,
        running=is_locked(directory),
        scales=scales_in(read_json(directory / SCALES, dict)),
    )


def quantity_and_stage(name: str) -> tuple[str, int] | None:
    """Return the quantity and the stage of a probe's metric, such as probe/cosine_to_delayed/stage-03; None for any other metric."""
    matched = _PROBE_METRIC.fullmatch(name)
    return None if matched is None else (matched["quantity"], int(matched["stage"]))
