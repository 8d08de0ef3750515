"""The fall of a learning rate from the end of warm-up to the run's end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs.validators import and_, ge, le

from petra_graph.registry.contracts import Horizon, option


def final() -> Any:
    """Return the key `final`, the factor at the run's end."""
    return option("share of the base learning rate at the run's end", default=0.0, validator=and_(ge(0), le(1)))


def falling(curve: Callable[[float], float], final: float, horizon: Horizon) -> Callable[[int], float]:
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
