"""A power of what is left of the run."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen
from attrs.validators import and_, ge, gt, le

from petra_graph.catalog.lr_schedules.progress import after_warmup
from petra_graph.registry.contracts import Horizon, LrScheduleDeclaration, option


@frozen(kw_only=True)
class PolynomialOptions:
    """The curve's exponent, and where it ends."""

    power: float = option("exponent; 1 is a straight line", default=2.0, validator=gt(0))
    final: float = option(
        "share of the base learning rate that the run's end comes to", default=0.0, validator=and_(ge(0), le(1))
    )


def polynomial(options: PolynomialOptions, horizon: Horizon) -> Callable[[int], float]:
    """Return (1 - t) ** power between 1 and `final`, t in [0, 1) over the updates after warm-up (You et al. 2017)."""

    def factor(u: int) -> float:
        left = 1 - after_warmup(u, horizon)
        return float(options.final + (1 - options.final) * left**options.power)

    return factor


POLYNOMIAL = LrScheduleDeclaration(
    summary="A power of what is left of the run, from the end of warm-up.",
    options=PolynomialOptions,
    build="petra_graph.catalog.lr_schedules.polynomial:polynomial",
)
