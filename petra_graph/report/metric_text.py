"""Metrics as people read them: whatever a loss counts has its place, and shares of samples are percentages."""

from __future__ import annotations

import re
from collections.abc import Iterable

from petra_graph.record import metrics
from petra_graph.units import percent

FIRST = ("test/top1", "test/loss")
"""Of a run's final figures, those that stand before all others."""


def is_share(metric: str) -> bool:
    """Whether a metric is a share of the samples: top1, top5 and so on, of the training or the test."""
    return metrics.is_share(re.sub(r"^(train|test)/", "", metric))


def value_text(metric: str, value: float) -> str:
    """Write a metric's value: shares of samples as percentages."""
    return percent(value, 2) if is_share(metric) else f"{value:.4g}"


def metric_text(metric: str, value: float) -> str:
    """Write a metric's name and value."""
    return f"{metric} {value_text(metric, value)}"


def final_metrics(names: Iterable[str]) -> list[str]:
    """Return the metrics whose latest values say how runs ended, of all that they recorded.

    Args:
        names: as in `metrics.jsonl`: "test/top1", "train/loss", "learning_rate".
    """
    found = dict.fromkeys(names)
    own = [name for name in found if name.startswith("test/") and name not in FIRST]
    return [name for name in (*FIRST, *own, "train/loss") if name in found]
