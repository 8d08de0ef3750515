"""Learning-rate schedules: factors of the base learning rate by update, which are functions of a stage's own update count alone."""

from __future__ import annotations

from bisect import bisect_right
from math import ceil, cos, pi
from typing import Annotated

from petra_graph.plugins import AtLeast, AtMost, GreaterThan, Horizon

Milestones = Annotated[
    tuple[Annotated[float, GreaterThan(0)], ...],
    "epochs of the drops, counted from the run's start, warm-up included; fractions are allowed",
]
Gamma = Annotated[float, "factor of the learning rate at each milestone", GreaterThan(0)]
Final = Annotated[float, "share of the base learning rate at the run's end", AtLeast(0), AtMost(1)]


def constant(update: int, horizon: Horizon) -> float:  # noqa: ARG001  the contract's signature
    """The base learning rate throughout."""
    return 1.0


def step(update: int, horizon: Horizon, *, milestones: Milestones, gamma: Gamma = 0.1) -> float:
    """Multiply the learning rate by gamma at each of the given epochs."""
    # A milestone's own update is the first after the drop. Rounding first: 0.7 epochs of 10 updates are 7 updates, not the next after 7.000000000000001.
    drops = sorted(ceil(round(milestone * horizon.updates_per_epoch, 6)) for milestone in milestones)
    return float(gamma ** bisect_right(drops, update))


def cosine(update: int, horizon: Horizon, *, final: Final = 0.0) -> float:
    """Half a cosine wave from the end of warm-up to the run's end.

    (1 + cos(pi t)) / 2 between 1 and `final`, t in [0, 1) (Loshchilov and Hutter 2017, arXiv:1608.03983).
    """
    # The share of the updates after warm-up that is over: 1 only after the last one, so that no factor within the run is 0.
    past = update - horizon.warmup_updates
    share = min(1.0, past / (horizon.updates - horizon.warmup_updates)) if past > 0 else 0.0
    return final + (1 - final) * ((1 + cos(pi * share)) / 2)
