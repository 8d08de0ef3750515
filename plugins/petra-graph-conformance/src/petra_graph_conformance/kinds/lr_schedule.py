"""A learning-rate schedule: a pure, cheap function from an update's number to a finite factor of at least 0."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Self

import numpy as np
from attrs import evolve, field, frozen

from petra_graph.kinds.generators import seeded
from petra_graph.kinds.lr_schedule import LR_SCHEDULE, Horizon, factor_fault
from petra_graph.kinds.plugin_kind import PluginKind
from petra_graph.kinds.stage_facts import StageFacts
from petra_graph_conformance.broken_promise import BrokenPromise
from petra_graph_conformance.declaration_promises import DECLARATION, NO_TORCH, PACKAGE
from petra_graph_conformance.plugin_trial import StageTrial
from petra_graph_conformance.promise import KindChecks, Promise

HORIZONS = (
    Horizon(updates=60, updates_per_epoch=10, warmup_updates=0),
    Horizon(updates=60, updates_per_epoch=10, warmup_updates=15),
    Horizon(updates=1, updates_per_epoch=1, warmup_updates=0),
    Horizon(updates=450_000, updates_per_epoch=5_000, warmup_updates=25_000),
)
"""Horizons of runs: short, with a warm-up, of one update, and as long as ImageNet's."""


_ASKED = 60
"""Updates of a horizon at which the schedule is asked."""


_ASKED_IN_RUN = 1000
"""Updates of a run whose learning rates are asked for; of these, `_ASKED` are asked for again."""


_PURE = "compute the factor from u; keep no last value, and draw no random numbers"


_FULL = 0.5
"""The largest factor of a run is at least this."""


_LARGE = 2.0
"""No factor is above this."""


_LONG = 0.25
"""The share of a run over which a factor may be 0, and after which one that changes still does."""


_GUESSED = 2
"""Early changes that are let be outside of a run: milestones may be guessed ones."""


_SECONDS = 1e-3
"""The longest that one factor may take: a step of a small stage takes about as long."""


@frozen(kw_only=True)
class LrScheduleTrial(StageTrial):
    """A learning-rate schedule with options.

    Attributes:
        plugin: the schedule.
        options: an instance of its own options class.
        stages: as of `StageTrial`.
        horizons: the runs that it is tried with.
        of_run: the learning rates of a stage of a run, instead of new factors; the run's horizon is then the only one.
        full: that rate where the factor is 1.
    """

    horizons: Sequence[Horizon] = HORIZONS
    of_run: Callable[[StageFacts], Callable[[int], float]] | None = field(default=None, repr=False, eq=False)
    full: Callable[[int], float] = field(default=lambda _: 1.0, repr=False, eq=False)

    @staticmethod
    def of_kind() -> PluginKind:
        return LR_SCHEDULE

    def factor(self, horizon: Horizon) -> Callable[[int], Any]:
        """Return the factors of a run, without a guard."""
        if self.of_run is not None:
            return self.of_run(self.facts)
        factor: Callable[[int], Any] = self.during(horizon).build_raw(self.options, horizon)
        return factor

    def during(self, horizon: Horizon) -> Self:
        """Return the trial in a stage of a run of this length."""
        micro_batches = horizon.updates_per_epoch * self.facts.accumulation
        return evolve(self, stages=(evolve(self.facts, micro_batches=micro_batches),))

    def asked(self, horizon: Horizon) -> list[int]:
        """Return updates of a run, spread over it, with the first, the last, and those around the end of the warm-up."""
        if self.of_run is not None:
            every = _spread(horizon)
            return every[:: -(-len(every) // _ASKED)]
        spread = range(0, horizon.updates, max(1, horizon.updates // _ASKED))
        around = range(horizon.warmup_updates - 1, horizon.warmup_updates + 2)
        return sorted({u for u in (*spread, *around, horizon.updates - 1) if 0 <= u < horizon.updates})


def _spread(horizon: Horizon) -> list[int]:
    spread = np.linspace(0, horizon.updates - 1, min(horizon.updates, _ASKED_IN_RUN))
    asked: list[int] = np.unique(spread.astype(int)).tolist()
    return asked


def check_lr_schedule_construction(trial: LrScheduleTrial) -> None:
    """`build` returns a function of the update, for a run of any length, with a warm-up or without."""
    for horizon in trial.horizons:
        trial.during(horizon).build(trial.options, horizon)


def check_finite(trial: LrScheduleTrial) -> None:
    """Every factor of a run is a finite number of at least 0: from u = 0 to the last update."""
    for horizon in trial.horizons:
        factor = trial.factor(horizon)
        if trial.of_run is not None:  # whose guard refuses others
            for u in _spread(horizon):
                factor(u)
            continue
        for u in trial.asked(horizon):
            fault = factor_fault(u, factor(u))
            if fault:
                remedy = "return a float for each u in 0 .. horizon.updates - 1; warm-up is applied outside"
                raise BrokenPromise("finite", f"{fault} (of {_said(horizon)})", remedy)


def check_pure(trial: LrScheduleTrial) -> None:
    """A factor depends on u, the options and the horizon alone: stages ask at different times, a resumed run from its middle."""
    for horizon in trial.horizons:
        asked = trial.asked(horizon)
        about = _said(horizon) if trial.of_run is None else f"the run's {asked[-1] + 1:,} updates"
        with seeded(1):
            factor = trial.factor(horizon)
        last = _expect_pure(factor, asked, about)
        if trial.of_run is not None:
            continue
        with seeded(2):
            anew = trial.factor(horizon)(asked[-1])
        if anew != last:
            found = f"built again and asked for update {asked[-1]} first, its factor is another one"
            raise BrokenPromise("pure", f"{found} (of {about})", _PURE)


def _expect_pure(factor: Callable[[int], Any], asked: Sequence[int], about: str) -> Any:
    """Ask for factors twice, in opposite orders and with other states of the global generators; return the last update's."""
    with seeded(1):
        first = [factor(u) for u in asked]
    with seeded(2):
        again = {u: factor(u) for u in reversed(asked)}
    differing = [u for u, value in zip(asked, first, strict=True) if again[u] != value]
    if differing:
        found = f"asked again, in another order, its factor at update {differing[0]} is another one"
        raise BrokenPromise("pure", f"{found} (of {about})", _PURE)
    return first[-1]


def check_full_rate(trial: LrScheduleTrial) -> None:
    """Some factor of a run is 1 or near it: options.lr is the rate that a specification states, and not a multiple of it.

    A schedule that asks for its stage's facts may have lower factors in a stage with a delay.
    """
    if trial.asks and trial.facts.steady:
        return
    for factors, about in _courses(trial):
        highest = max(factors, key=lambda u: factors[u])
        if factors[highest] < _FULL:
            found = f"its largest factor is {factors[highest]:.3g}, at update {highest:,}{about}"
            raise BrokenPromise("full rate", found, "let it be 1 where the learning rate is to be options.lr")


def check_course(trial: LrScheduleTrial) -> None:
    """Over a whole run, factors are not 0 for long, not above 2, and do not stay the same from an early update on, having changed before.

    A schedule that counts in epochs or in micro-batches where it is asked for updates ends too early, or hardly begins.
    """
    if trial.asks and trial.facts.steady:
        return
    remedy = "u counts updates: horizon.updates are the run's, horizon.updates_per_epoch an epoch's"
    for factors, about in _courses(trial):
        asked = list(factors)
        zeros = [u for u, factor in factors.items() if factor == 0]
        if len(zeros) > _LONG * len(asked):
            found = f"its factor is 0 at {len(zeros)} of {len(asked)} updates, first at update {zeros[0]:,}{about}"
            raise BrokenPromise("course", found, remedy)
        large = next((u for u, factor in factors.items() if factor > _LARGE), None)
        if large is not None:
            found = f"its factor is {factors[large]:.3g} at update {large:,}{about}"
            raise BrokenPromise("course", found, "let it be at most 1 where the learning rate is to be options.lr")
        changes = [u for before, u in pairwise(asked) if factors[u] != factors[before]]
        few = 0 if trial.of_run is not None else _GUESSED
        if len(changes) > few and len(asked) >= _ASKED // 2 and changes[-1] < asked[0] + _LONG * (asked[-1] - asked[0]):
            found = f"its factor changes up to update {changes[-1]:,} of {asked[-1] + 1:,}, and stays at {factors[asked[-1]]:.3g}{about}"
            raise BrokenPromise("course", found, remedy)


def _courses(trial: LrScheduleTrial) -> Iterator[tuple[dict[int, float], str]]:
    """Yield the factors of each run with more than one update, by update, and the run in words."""
    for horizon in trial.horizons:
        factor = trial.factor(horizon)
        every = trial.asked(horizon) if trial.of_run is None else _spread(horizon)
        factors = {u: factor(u) / full for u in every if (full := trial.full(u))}
        if len(factors) > 1:
            yield factors, "" if trial.of_run is not None else f" (of {_said(horizon)})"


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


def _said(horizon: Horizon) -> str:
    return f"a run of {horizon.updates:,} updates, {horizon.warmup_updates:,} of warm-up"


LR_SCHEDULE_CHECKS = KindChecks(
    kind=LR_SCHEDULE,
    promises=(
        DECLARATION,
        PACKAGE,
        Promise("construction", check_lr_schedule_construction, foundation=True),
        Promise("finite", check_finite),
        Promise("pure", check_pure),
        Promise("full rate", check_full_rate, doubt=True),
        Promise("course", check_course, doubt=True),
        Promise("cheap", check_cheap),
        NO_TORCH,
    ),
    trial=LrScheduleTrial,
)
