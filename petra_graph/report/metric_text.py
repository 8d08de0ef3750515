"""Metrics as people read them: whatever a loss counts has its place, and shares of samples are percentages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from petra_graph.kinds import loss
from petra_graph.units import percent

FIRST = ("test/top1", "test/loss")
"""The metrics that come first among a run's final figures."""
_SMALL, _LARGE = 0.001, 10_000
"""Between these, four decimals of a mean say enough."""


def is_share(metric: str) -> bool:
    """Whether a metric is a share of the samples: top1, top5 and so on, of the training or the test."""
    return loss.is_share(re.sub(r"^(train|test)/", "", metric))


def value_text(metric: str, value: float) -> str:
    """Write a metric's value: shares of samples as percentages."""
    return percent(value, 2) if is_share(metric) else f"{value:.4g}"


def metric_text(metric: str, value: float) -> str:
    return f"{metric} {value_text(metric, value)}"


def final_metrics(names: Iterable[str]) -> list[str]:
    """Return the metrics whose latest values say how runs ended, of all that they recorded.

    Args:
        names: as in `metrics.jsonl`: "test/top1", "train/loss", "learning_rate".
    """
    found = dict.fromkeys(names)
    own = [name for name in found if name.startswith("test/") and name not in FIRST]
    return [name for name in (*FIRST, *own, "train/loss") if name in found]


def numbers(means: Mapping[str, float]) -> str:
    """Write all metrics, the loss first; shares of samples, which are called top1, top5 and so on, are percentages."""
    names = sorted(means, key=lambda name: name != "loss")
    return " ".join(f"{name} {_number(name, means[name])}" for name in names)


def _number(name: str, value: float) -> str:
    if is_share(name):
        return percent(value, 2)
    return f"{value:.4f}" if _SMALL <= abs(value) < _LARGE or not value else f"{value:.5g}"


def tested(means: Mapping[str, float], part: str) -> str:
    """Write the result of an evaluation, which has read a part of the samples, or all."""
    return numbers(means) + (f" ({part})" if part else "")
