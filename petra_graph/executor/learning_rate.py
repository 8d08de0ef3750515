"""The learning rate of a stage, a function of its own update count u = 0, 1, ...

    lr(u) = base * goyal * warm-up(u) * factor(u) * by-delay(u)

    goyal        batch * k * replicas / 256 with `scaling = "goyal"`, else 1 (Goyal et al. 2017, https://arxiv.org/abs/1706.02677);
                 no other module scales the rate
    warm-up      (u+1)/W for u < W, then 1
    factor       the schedule's: the same in all stages, unless it asks for a stage's facts
    by-delay     max(1, D(u)) ** -(1 - u/T) for u < T with `delay_epochs`, else 1

T updates are `delay_epochs`, and D(u) is the stage's mean delay in updates at its update u. At u = 0 the rate is divided by D, as the stability
of descent with late gradients asks for; from u = T on the factor is 1. A stage whose gradients are at most one update late has 1 throughout.
It is technique T1 of PipeMare (Yang et al. 2021, https://arxiv.org/abs/1910.05124), which counts updates from 0, as here; the code of Ajanthan
et al. 2025, which has T1 as a baseline, counts from 1.

Decision: a factor beside warm-up and the schedule's own, so that it composes with any of them, and with any optimizer.
"""

from __future__ import annotations

from collections.abc import Callable

from petra_graph.kinds.lr_schedule import Horizon
from petra_graph.kinds.stage_facts import UNDELAYED, StageFacts
from petra_graph.spec.model import Spec

GOYAL_BATCH = 256
LearningRate = Callable[[int], float]


def horizon(spec: Spec, micro_batches_per_epoch: int) -> Horizon:
    """Return a run's numbers of updates: an epoch makes ceil(micro-batches / k)."""
    per_epoch = -(-micro_batches_per_epoch // spec.method.accumulation)
    return Horizon(
        updates=per_epoch * spec.run.epochs,
        updates_per_epoch=per_epoch,
        warmup_updates=round(spec.lr_schedule.warmup_epochs * per_epoch),
    )


def scaled_rate(spec: Spec, base: float) -> float:
    """Return a base learning rate as `lr_schedule.scaling` has it: base * goyal."""
    if spec.lr_schedule.scaling == "goyal":
        return base * (spec.data.batch * spec.method.accumulation * spec.partition.replicas / GOYAL_BATCH)
    return base


def learning_rate(
    spec: Spec, base: float, factor: Callable[[int], float], horizon: Horizon, stage: StageFacts = UNDELAYED
) -> LearningRate:
    """Return lr(u) of a stage for a base learning rate and a schedule's factor."""
    scale = scaled_rate(spec, base)
    warmup = horizon.warmup_updates
    annealed = round(spec.lr_schedule.delay_epochs * horizon.updates_per_epoch)

    def rate(update: int) -> float:
        ramp = (update + 1) / warmup if update < warmup else 1.0
        full = scale * ramp * factor(update)
        return full if update >= annealed else full * delay_factor(update, stage.staleness_of_update(update), annealed)

    return rate


def delay_factor(u: int, delay: float, annealed: int) -> float:
    """Return by-delay(u).

    Args:
        u: counted from 0.
        delay: D(u), at least 0.
        annealed: T; 0 for none.
    """
    return 1.0 if u >= annealed else float(max(1.0, delay) ** (u / annealed - 1))
