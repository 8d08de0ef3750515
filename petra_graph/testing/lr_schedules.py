"""A learning-rate schedule is a pure, cheap function from an update's number to a finite factor of at least 0."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from attrs import frozen

from petra_graph.registry.built import factor_fault
from petra_graph.registry.contracts import LR_SCHEDULES, Declaration, Horizon
from petra_graph.registry.registry import Plugin
from petra_graph.testing.any_trial import PluginTrial, as_plugin, read_given
from petra_graph.testing.broken_promise import BrokenPromise
from petra_graph.testing.generators import seeded

HORIZONS = (
    Horizon(updates=60, updates_per_epoch=10, warmup_updates=0),
    Horizon(updates=60, updates_per_epoch=10, warmup_updates=15),
    Horizon(updates=1, updates_per_epoch=1, warmup_updates=0),
    Horizon(updates=450_000, updates_per_epoch=5_000, warmup_updates=25_000),
)
"""Of runs: short, with a warm-up, of one update, and as long as ImageNet's."""
_ASKED = 60
"""Updates of a horizon at which the schedule is asked."""
_PURE = "compute the factor from u; keep no last value, and draw no random numbers"
_SECONDS = 1e-3
"""The longest that one factor may take: a step of a small stage takes about as long."""


@frozen(kw_only=True)
class LrScheduleTrial(PluginTrial):
    """A learning-rate schedule with options.

    Attributes:
        plugin: the schedule.
        options: an instance of its own options class.
        horizons: the runs that it is tried with.
    """

    kind: ClassVar[str] = "learning-rate schedule"
    group: ClassVar[str] = LR_SCHEDULES
    horizons: Sequence[Horizon] = HORIZONS

    @staticmethod
    def of(
        lr_schedule: Declaration | Plugin, options: Mapping[str, Any] | object = None, **settings: Any
    ) -> LrScheduleTrial:
        """Make a trial of a declaration, with its `options` table; settings are attributes of the same name."""
        plugin = as_plugin(LR_SCHEDULES, lr_schedule)
        return LrScheduleTrial(plugin=plugin, options=read_given(plugin, options), **settings)

    def factor(self, horizon: Horizon) -> Callable[[int], Any]:
        """Return the factors of a run, without a guard."""
        factor: Callable[[int], Any] = self.build_raw(self.options, horizon)
        return factor


def check_lr_schedule_construction(trial: LrScheduleTrial) -> None:
    """`build` returns a function of the update, for a run of any length, with a warm-up or without."""
    for horizon in trial.horizons:
        trial.build(trial.options, horizon)


def check_finite(trial: LrScheduleTrial) -> None:
    """Every factor of a run is a finite number of at least 0: from u = 0 to the last update."""
    for horizon in trial.horizons:
        factor = trial.factor(horizon)
        for u in _asked(horizon):
            fault = factor_fault(u, factor(u))
            if fault:
                remedy = "return a float for each u in 0 .. horizon.updates - 1; warm-up is applied outside"
                raise BrokenPromise("finite", f"{fault} (of {_said(horizon)})", remedy)


def check_pure(trial: LrScheduleTrial) -> None:
    """A factor depends on u, the options and the horizon alone: stages ask at different times, a resumed run from its middle."""
    for horizon in trial.horizons:
        asked = _asked(horizon)
        with seeded(1):
            factor = trial.factor(horizon)
        last = expect_pure(factor, asked, _said(horizon))
        with seeded(2):
            anew = trial.factor(horizon)(asked[-1])
        if anew != last:
            found = f"built anew and asked for update {asked[-1]} first, its factor is another one"
            raise BrokenPromise("pure", f"{found} (of {_said(horizon)})", _PURE)


def expect_pure(factor: Callable[[int], Any], asked: Sequence[int], about: str) -> Any:
    """Ask for factors twice, in opposite orders and with other states of the global generators; return the last update's.

    Raises:
        BrokenPromise: some are others at the second time.
    """
    with seeded(1):
        first = [factor(u) for u in asked]
    with seeded(2):
        again = {u: factor(u) for u in reversed(asked)}
    differing = [u for u, value in zip(asked, first, strict=True) if again[u] != value]
    if differing:
        found = f"asked again, in another order, its factor at update {differing[0]} is another one"
        raise BrokenPromise("pure", f"{found} (of {about})", _PURE)
    return first[-1]


def check_cheap(trial: LrScheduleTrial) -> None:
    """A factor takes less than a millisecond, also late in a long run: every stage asks before each of its steps."""
    horizon = max(trial.horizons, key=lambda horizon: horizon.updates)
    factor = trial.factor(horizon)
    last = horizon.updates - 1
    factor(last)
    seconds = min(_seconds(factor, last) for _ in range(3))
    if seconds > _SECONDS:
        found = f"its factor at update {last:,} takes {1000 * seconds:.1f} ms"
        raise BrokenPromise("cheap", found, "compute it from u directly, without going over the updates before it")


def _seconds(factor: Callable[[int], Any], u: int) -> float:
    begin = time.perf_counter()
    factor(u)
    return time.perf_counter() - begin


def _asked(horizon: Horizon) -> list[int]:
    """Return updates of a run, spread over it, with the first, the last, and those around the end of the warm-up."""
    spread = range(0, horizon.updates, max(1, horizon.updates // _ASKED))
    around = range(horizon.warmup_updates - 1, horizon.warmup_updates + 2)
    return sorted({u for u in (*spread, *around, horizon.updates - 1) if 0 <= u < horizon.updates})


def _said(horizon: Horizon) -> str:
    return f"a run of {horizon.updates:,} updates, {horizon.warmup_updates:,} of warm-up"
