"""Metrics as people read them: whatever a loss counts has its place, and shares are percentages.

`scales` are those of a run's metrics by their names, which say what shares are; of other values, the names say it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from petra_graph.plugins.loss_and_metric import Scale, scale_of
from petra_graph.units import percent

EVALUATED = ("validation/", "test/")
"""What metrics of evaluations begin with, those that choose first."""
FIRST = tuple(f"{part}{name}" for part in EVALUATED for name in ("top1", "loss"))
"""The metrics that come first among a run's final figures."""

Scales = Mapping[str, Scale]
NO_SCALES: Scales = MappingProxyType({})


def is_share(metric: str, scales: Scales = NO_SCALES) -> bool:
    """Whether a metric is a share: top1, top5 and so on, or one whose scale says so."""
    return scale_of(metric, scales).share


def value_text(metric: str, value: float, scales: Scales = NO_SCALES) -> str:
    """Write a metric's value: shares as percentages."""
    if is_share(metric, scales):
        return percent(value, 2)
    # Between these, four decimals of a mean say enough.
    return f"{value:.4f}" if 0.001 <= abs(value) < 10_000 or not value else f"{value:.5g}"  # noqa: PLR2004


def numbers(means: Mapping[str, float], scales: Scales = NO_SCALES) -> str:
    """Write all metrics, the loss first."""
    first = sorted(means.items(), key=lambda item: item[0] != "loss")
    return " ".join(f"{name} {value_text(name, value, scales)}" for name, value in first)


def chosen_on(metric: str) -> str:
    """Say which samples have chosen a best value: the best of several on the test set is not what new samples will give."""
    part = metric.partition("/")[0]
    if part == "test":
        return "chosen on the test set, so new samples will do worse: set data.validation"
    return f"chosen on the {'training' if part == 'train' else part} samples"


def final_metrics(names: Iterable[str]) -> list[str]:
    """Return the metrics whose latest values say how runs ended, of all that they recorded: "test/top1", "train/loss"."""
    found = dict.fromkeys(names)
    own = [name for name in found if name.startswith(EVALUATED) and name not in FIRST]
    return [name for name in (*FIRST, *own, "train/loss") if name in found]
