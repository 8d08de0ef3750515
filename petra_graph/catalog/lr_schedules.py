"""Learning-rate schedules: factors of the base learning rate by update.

Decision: not torch.optim.lr_scheduler, which needs an optimizer and torch; here a factor is a function of a stage's
own update count, so that one schedule serves all stages and is tested without a network.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from math import ceil, cos, pi
from typing import Any

from attrs import Attribute, frozen

from petra_graph.plugins import (
    AtLeast,
    AtMost,
    Each,
    GreaterThan,
    Horizon,
    NoOptions,
    option,
)


def _final() -> Any:
    return option("share of the base learning rate at the run's end", default=0.0, validator=[AtLeast(0), AtMost(1)])


def _falling(curve: Callable[[float], float], final: float, horizon: Horizon) -> Callable[[int], float]:
    """Return the factor of update u: 1 during warm-up, then `curve`, which falls from 1 to 0, scaled to end at `final`.

    The curve's argument is the share of the updates after warm-up that lies before update u, in [0, 1).

    Decision: the share would reach 1 at the run's end, after its last update. So a factor that falls to 0 is above 0 at
    every update.
    """
    updates = horizon.updates - horizon.warmup_updates

    def factor(u: int) -> float:
        past = u - horizon.warmup_updates
        share = min(1.0, past / updates) if past > 0 else 0.0
        return final + (1 - final) * curve(share)

    return factor


def constant(options: NoOptions, horizon: Horizon) -> Callable[[int], float]:  # noqa: ARG001  the contract's signature
    """The base learning rate throughout."""
    return lambda _: 1.0


def _increasing(_: Any, __: Attribute[Any], value: tuple[float, ...]) -> None:
    if any(later <= earlier for earlier, later in pairwise(value)):
        raise ValueError(f"must increase (got {list(value)})")


@frozen(kw_only=True)
class StepOptions:
    """The epochs of the drops and their factor."""

    milestones: tuple[float, ...] = option(
        "epochs of the drops, counted from the run's start, warm-up included; fractions are allowed",
        unit="epochs",
        validator=[Each(GreaterThan(0)), _increasing],
    )
    gamma: float = option("factor of the learning rate at each milestone", default=0.1, validator=GreaterThan(0))


def step(options: StepOptions, horizon: Horizon) -> Callable[[int], float]:
    """Multiply the learning rate by gamma at each of the given epochs.

    Gamma to the power of the milestones passed; a milestone's own update is the first after the drop.
    """
    # Rounding first: 0.7 epochs of 10 updates are 7 updates, not the next after 7.000000000000001.
    drops = [ceil(round(milestone * horizon.updates_per_epoch, 6)) for milestone in options.milestones]
    return lambda u: float(options.gamma ** bisect_right(drops, u))


@frozen(kw_only=True)
class CosineOptions:
    """The end of the curve."""

    final: float = _final()


def cosine(options: CosineOptions, horizon: Horizon) -> Callable[[int], float]:
    """Half a cosine wave from the end of warm-up to the run's end.

    (1 + cos(pi t)) / 2 between 1 and `final`, t in [0, 1) (Loshchilov and Hutter 2017, arXiv:1608.03983).
    """
    return _falling(lambda t: (1 + cos(pi * t)) / 2, options.final, horizon)


@frozen(kw_only=True)
class PolynomialOptions:
    """The exponent and the end of the curve."""

    power: float = option("exponent; 1 is a straight line", default=2.0, validator=GreaterThan(0))
    final: float = _final()


def polynomial(options: PolynomialOptions, horizon: Horizon) -> Callable[[int], float]:
    """A power of the share of the run that is left, from the end of warm-up.

    (1 - t) ** power between 1 and `final`, t in [0, 1) over the updates after warm-up (You et al. 2017).
    """
    return _falling(lambda t: float((1 - t) ** options.power), options.final, horizon)
