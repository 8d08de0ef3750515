"""Half a cosine wave from the end of warm-up to the run's end."""

from __future__ import annotations

from collections.abc import Callable
from math import cos, pi

from attrs import frozen
from attrs.validators import and_, ge, le

from petra_graph.catalog.lr_schedules.progress import after_warmup
from petra_graph.registry.contracts import Horizon, LrScheduleDeclaration, option


@frozen(kw_only=True)
class CosineOptions:
    """Where the curve ends."""

    final: float = option(
        "share of the base learning rate that the run's end comes to", default=0.0, validator=and_(ge(0), le(1))
    )


def cosine(options: CosineOptions, horizon: Horizon) -> Callable[[int], float]:
    """Return (1 + cos(pi t)) / 2 between 1 and `final`, t in [0, 1) (Loshchilov and Hutter 2017, arXiv:1608.03983)."""

    def factor(u: int) -> float:
        return options.final + (1 - options.final) * (1 + cos(pi * after_warmup(u, horizon))) / 2

    return factor


COSINE = LrScheduleDeclaration(
    summary="Half a cosine wave from the end of warm-up to the run's end.",
    options=CosineOptions,
    build="petra_graph.catalog.lr_schedules.cosine:cosine",
)
