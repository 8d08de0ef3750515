"""The checkpoints of a run by the metric of `checkpoint.best`, and those that stay."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from petra_graph.kinds.metric import Scale, scale_of
from petra_graph.record.checkpoint import Damaged, numbers, read_manifest
from petra_graph.spec.run_tables import CheckpointSpec


def kept(directory: Path, spec: CheckpointSpec, scales: Mapping[str, Scale]) -> list[int]:
    """Return the cuts of the checkpoints that stay: the latest ones, and the best one."""
    return numbers(directory)[: spec.keep] + ([] if spec.best is None else best(directory, spec, scales)[:1])


def best(directory: Path, spec: CheckpointSpec, scales: Mapping[str, Scale]) -> list[int]:
    """Return the cuts of the checkpoints that have the metric of `checkpoint.best`, the best first; of equals, the earliest."""
    assert spec.best is not None
    smallest = (spec.best_is or scale_of(spec.best, scales).largest_or_smallest) == "smallest"
    values: dict[int, float] = {}
    for at in reversed(numbers(directory)):
        try:
            values[at] = read_manifest(directory, at).metrics[spec.best]
        except (Damaged, KeyError):
            continue
    return sorted(values, key=lambda at: values[at] if smallest else -values[at])
