"""Learning-rate factors, update by update."""

from __future__ import annotations

from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.catalog.lr_schedules import constant, cosine, step
from petra_graph.plugins.stage_facts import Horizon

HALF = 1 / sqrt(2)


def horizon(updates, *, per_epoch=2, warmup=0):
    return Horizon(updates=updates, updates_per_epoch=per_epoch, warmup_updates=warmup)


def factors(build, options, horizon):
    return [build(u, horizon, **options) for u in range(horizon.updates)]


@pytest.mark.parametrize(
    ("expected", "build", "options", "horizon"),
    [
        ([1, 1, 1, 1], constant, {}, horizon(4)),
        ([1, 1, 0.1, 0.1, 0.01, 0.01], step, {"milestones": (1, 2)}, horizon(6)),
        # Milestones count from the run's start: warm-up moves nothing.
        ([1, 1, 0.1, 0.1, 0.01, 0.01], step, {"milestones": (1, 2)}, horizon(6, warmup=3)),
        ([1, 0.5, 0.5, 0.25], step, {"milestones": (0.5, 1.5), "gamma": 0.5}, horizon(4)),
        ([1, 1, 1, 1], step, {"milestones": ()}, horizon(4)),
        ([1, 1, 1, 1], step, {"milestones": (90,)}, horizon(4)),
        ([1, (1 + HALF) / 2, 0.5, (1 - HALF) / 2], cosine, {}, horizon(4)),
        ([1, 1, 1, (1 + HALF) / 2, 0.5, (1 - HALF) / 2], cosine, {}, horizon(6, warmup=2)),
        ([1, 0.6], cosine, {"final": 0.2}, horizon(2)),
    ],
)
def test_factors(expected, build, options, horizon):
    assert expected == pytest.approx(factors(build, options, horizon), abs=1e-12)


def test_a_fraction_of_an_epoch_meets_its_update_in_spite_of_rounding():
    # 0.7 * 10 is 7.000000000000001 in binary; the drop belongs to update 7, not 8.
    assert factors(step, {"milestones": (0.7,)}, horizon(10, per_epoch=10))[6:8] == [1.0, 0.1]


@given(updates=st.integers(1, 300), warmup=st.integers(0, 400))
def test_decay_starts_at_one_never_rises_and_is_never_zero_within_the_run(updates, warmup):
    values = factors(cosine, {}, horizon(updates, warmup=warmup))
    assert values[0] == 1.0
    assert values == sorted(values, reverse=True)
    assert values[-1] > 0
    assert all(value == 1.0 for value in values[: warmup + 1])
