"""A learning rate that drops at given epochs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from math import ceil
from typing import Any

from attrs import Attribute, frozen
from attrs.validators import deep_iterable, gt

from petra_graph.registry.contracts import Horizon, LrScheduleDeclaration, option


def _increasing(_: Any, __: Attribute[Any], value: tuple[float, ...]) -> None:
    if any(later <= earlier for earlier, later in pairwise(value)):
        raise ValueError(f"milestones must increase (got {list(value)})")


@frozen(kw_only=True)
class StepOptions:
    """The epochs of the drops and their factor."""

    milestones: tuple[float, ...] = option(
        "epochs of the drops, counted from the run's start, warm-up included; fractions are allowed",
        unit="epochs",
        validator=[deep_iterable(gt(0)), _increasing],
    )
    gamma: float = option("factor of the learning rate at each milestone", default=0.1, validator=gt(0))


def step(options: StepOptions, horizon: Horizon) -> Callable[[int], float]:
    """Return gamma to the power of the milestones passed; a milestone's own update is the first after the drop."""
    # Rounding first: 0.7 epochs of 10 updates are 7 updates, not the next after 7.000000000000001.
    drops = [ceil(round(milestone * horizon.updates_per_epoch, 6)) for milestone in options.milestones]
    return lambda u: float(options.gamma ** bisect_right(drops, u))


STEP = LrScheduleDeclaration(
    summary="Multiply the learning rate by gamma at each of the given epochs.",
    options=StepOptions,
    build="petra_graph.catalog.lr_schedules.step:step",
)
