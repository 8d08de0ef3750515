"""How far a run has come, as schedules count it."""

from __future__ import annotations

from petra_graph.registry.contracts import Horizon


def after_warmup(u: int, horizon: Horizon) -> float:
    """Return the share of the updates after warm-up that lies before update `u`: 0 during warm-up, always below 1.

    Decision: 1 would be reached at the run's end, after its last update. So a factor that falls to 0 with it is never 0
    while there is still something to learn.
    """
    if u <= horizon.warmup_updates:
        return 0.0
    return min(1.0, (u - horizon.warmup_updates) / (horizon.updates - horizon.warmup_updates))
