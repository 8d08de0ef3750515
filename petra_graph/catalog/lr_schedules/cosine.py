"""Half a cosine wave from the end of warm-up to the run's end."""

from __future__ import annotations

from collections.abc import Callable
from math import cos, pi

from attrs import frozen

from petra_graph.catalog.lr_schedules.progress import falling, final
from petra_graph.registry.contracts import Horizon, LrScheduleDeclaration


@frozen(kw_only=True)
class CosineOptions:
    """The end of the curve."""

    final: float = final()


def cosine(options: CosineOptions, horizon: Horizon) -> Callable[[int], float]:
    """Return (1 + cos(pi t)) / 2 between 1 and `final`, t in [0, 1) (Loshchilov and Hutter 2017, arXiv:1608.03983)."""
    return falling(lambda t: (1 + cos(pi * t)) / 2, options.final, horizon)


COSINE = LrScheduleDeclaration(
    summary="Half a cosine wave from the end of warm-up to the run's end.",
    options=CosineOptions,
    build="petra_graph.catalog.lr_schedules.cosine:cosine",
)
