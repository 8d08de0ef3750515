"""A power of the share of the run that is left."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen
from attrs.validators import gt

from petra_graph.catalog.lr_schedules.progress import falling, final
from petra_graph.registry.contracts import Horizon, LrScheduleDeclaration, option


@frozen(kw_only=True)
class PolynomialOptions:
    """The exponent and the end of the curve."""

    power: float = option("exponent; 1 is a straight line", default=2.0, validator=gt(0))
    final: float = final()


def polynomial(options: PolynomialOptions, horizon: Horizon) -> Callable[[int], float]:
    """Return (1 - t) ** power between 1 and `final`, t in [0, 1) over the updates after warm-up (You et al. 2017)."""
    return falling(lambda t: float((1 - t) ** options.power), options.final, horizon)


POLYNOMIAL = LrScheduleDeclaration(
    summary="A power of the share of the run that is left, from the end of warm-up.",
    options=PolynomialOptions,
    build="petra_graph.catalog.lr_schedules.polynomial:polynomial",
)
