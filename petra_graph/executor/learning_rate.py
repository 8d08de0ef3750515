"""The learning rate as a function of a stage's own update count.

    lr(u) = base * goyal * warm-up(u) * factor(u),    u = 0, 1, ...

warm-up(u) is (u+1)/W for u < W. With `scaling = "goyal"`, goyal is batch * k * replicas / 256 (Goyal et al. 2017,
https://arxiv.org/abs/1706.02677), else 1; no other module scales the rate.
"""

from __future__ import annotations

from collections.abc import Callable

from petra_graph.registry.contracts import Horizon
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


def learning_rate(spec: Spec, base: float, factor: Callable[[int], float], horizon: Horizon) -> LearningRate:
    """Return lr(u) for a base learning rate and a schedule's factor."""
    scale = base
    if spec.lr_schedule.scaling == "goyal":
        scale *= spec.data.batch * spec.method.accumulation * spec.partition.replicas / GOYAL_BATCH
    warmup = horizon.warmup_updates

    def rate(update: int) -> float:
        ramp = (update + 1) / warmup if update < warmup else 1.0
        return scale * ramp * factor(update)

    return rate
