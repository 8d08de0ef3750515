"""The learning rate as a function of the update count."""

from __future__ import annotations

import attrs
import pytest

from petra_graph.executor.stage_update import horizon, learning_rate
from petra_graph.kinds.lr_schedule import Horizon
from petra_graph.spec.model import DataSpec, LrScheduleSpec, MethodSpec, RunSpec, Spec


def spec(*, batch=64, accumulation=1, epochs=1, warmup_epochs=0.0, scaling="none") -> Spec:
    return Spec(
        data=DataSpec(name="random", batch=batch),
        method=MethodSpec(accumulation=accumulation),
        run=RunSpec(epochs=epochs),
        lr_schedule=LrScheduleSpec(warmup_epochs=warmup_epochs, scaling=scaling),
    )


def rates(given: Spec, count: int, *, micro_batches: int = 8, base: float = 0.1, factor=lambda _: 1.0) -> list[float]:
    rate = learning_rate(given, base, factor, horizon(given, micro_batches))
    return [rate(update) for update in range(count)]


@pytest.mark.parametrize(
    ("micro_batches", "accumulation", "epochs", "warmup_epochs", "expected"),
    [
        (8, 1, 1, 0, (8, 8, 0)),
        (8, 4, 3, 0, (6, 2, 0)),
        (9, 4, 3, 0, (9, 3, 0)),  # the last window of each epoch is shorter, and yet an update
        (8, 2, 5, 2, (20, 4, 8)),
        (8, 2, 5, 0.6, (20, 4, 2)),
        (3, 8, 2, 1, (2, 1, 1)),
    ],
)
def test_horizon(micro_batches, accumulation, epochs, warmup_epochs, expected):
    given = spec(accumulation=accumulation, epochs=epochs, warmup_epochs=warmup_epochs)
    updates, per_epoch, warmup = expected
    assert horizon(given, micro_batches) == Horizon(updates=updates, updates_per_epoch=per_epoch, warmup_updates=warmup)


def test_without_warm_up_the_base_rate_is_there_at_once():
    assert rates(spec(), 3) == [0.1, 0.1, 0.1]


def test_warm_up_over_w_updates_is_u_plus_1_over_w():
    assert rates(spec(warmup_epochs=0.5), 6) == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1])


def test_the_schedules_factor_sees_every_update_from_0():
    assert rates(spec(), 3, factor=lambda update: 10.0**-update) == pytest.approx([0.1, 0.01, 0.001])


def test_warm_up_multiplies_the_schedules_factor():
    assert rates(spec(warmup_epochs=0.25), 3, factor=lambda u: 1 - u / 10) == pytest.approx([0.05, 0.09, 0.08])


@pytest.mark.parametrize(("batch", "accumulation", "scale"), [(64, 4, 1), (256, 1, 1), (64, 16, 4), (32, 1, 1 / 8)])
def test_goyal_scales_by_samples_in_an_update_over_256(batch, accumulation, scale):
    given = spec(batch=batch, accumulation=accumulation, scaling="goyal")
    assert rates(given, 1) == pytest.approx([0.1 * scale])
    assert rates(attrs.evolve(given, lr_schedule=LrScheduleSpec(scaling="none")), 1) == [0.1]


def test_goyal_scales_once_also_within_the_warm_up():
    assert rates(spec(batch=512, scaling="goyal", warmup_epochs=0.25), 3) == pytest.approx([0.1, 0.2, 0.2])
