"""Learning-rate schedules: factors of the base learning rate by update.

Decision: not torch.optim.lr_scheduler, which needs an optimizer and torch; here a factor is a function of a stage's own update count, so
that one schedule serves all stages and is tested without a network.

Decision: the share of the updates after warm-up that lies before update u is in [0, 1): it would reach 1 at the run's end, after its last
update. So a factor that falls to 0 is above 0 at every update.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from math import ceil, cos, pi
from typing import Annotated

from petra_graph.plugins import AtLeast, AtMost, GreaterThan, Horizon

Final = Annotated[float, "share of the base learning rate at the run's end", AtLeast(0), AtMost(1)]


def _increasing(value: tuple[float, ...]) -> None:
    if any(later <= earlier for earlier, later in pairwise(value)):
        raise ValueError("must increase")


def _share(update: int, horizon: Horizon) -> float:
    """Return the share of the updates after warm-up that is over; 0 during warm-up."""
    past = update - horizon.warmup_updates
    return min(1.0, past / (horizon.updates - horizon.warmup_updates)) if past > 0 else 0.0


def constant(update: int, horizon: Horizon) -> float:  # noqa: ARG001  the contract's signature
    """The base learning rate throughout."""
    return 1.0


def step(
    update: int,
    horizon: Horizon,
    *,
    milestones: Annotated[
        tuple[Annotated[float, GreaterThan(0)], ...],
        "epochs of the drops, counted from the run's start, warm-up included; fractions are allowed",
        _increasing,
    ],
    gamma: Annotated[float, "factor of the learning rate at each milestone", GreaterThan(0)] = 0.1,
) -> float:
    """Multiply the learning rate by gamma at each of the given epochs.

    Gamma to the power of the milestones passed; a milestone's own update is the first after the drop.
    """
    # Rounding first: 0.7 epochs of 10 updates are 7 updates, not the next after 7.000000000000001.
    drops = [ceil(round(milestone * horizon.updates_per_epoch, 6)) for milestone in milestones]
    return float(gamma ** bisect_right(drops, update))


def cosine(update: int, horizon: Horizon, *, final: Final = 0.0) -> float:
    """Half a cosine wave from the end of warm-up to the run's end.

    (1 + cos(pi t)) / 2 between 1 and `final`, t in [0, 1) (Loshchilov and Hutter 2017, arXiv:1608.03983).
    """
    return final + (1 - final) * ((1 + cos(pi * _share(update, horizon))) / 2)
