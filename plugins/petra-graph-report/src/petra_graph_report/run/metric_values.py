"""Values of a run's metrics: how they are written, and which say how the run ended."""

from __future__ import annotations

from collections.abc import Iterable

from petra_graph.kinds.metric import scale_of
from petra_graph.report.metric_text import NO_SCALES, Scales
from petra_graph.units import percent

EVALUATED = ("validation/", "test/")
"""What metrics of evaluations begin with, those that choose first."""
FIRST = tuple(f"{part}{name}" for part in EVALUATED for name in ("top1", "loss"))
"""The metrics that come first among a run's final figures."""


def is_share(metric: str, scales: Scales = NO_SCALES) -> bool:
    """Whether a metric is a share: top1, top5 and so on, of the training or the test, or a metric whose scale says so."""
    return scale_of(metric, scales).share


def value_text(metric: str, value: float, scales: Scales = NO_SCALES) -> str:
    """Write a metric's value: shares as percentages."""
    return percent(value, 2) if is_share(metric, scales) else f"{value:.4g}"


def metric_text(metric: str, value: float, scales: Scales = NO_SCALES) -> str:
    return f"{metric} {value_text(metric, value, scales)}"


def final_metrics(names: Iterable[str]) -> list[str]:
    """Return the metrics whose latest values say how runs ended, of all that they recorded.

    Args:
        names: as in `metrics.jsonl`: "test/top1", "train/loss", "learning_rate".
    """
    found = dict.fromkeys(names)
    own = [name for name in found if name.startswith(EVALUATED) and name not in FIRST]
    return [name for name in (*FIRST, *own, "train/loss") if name in found]
