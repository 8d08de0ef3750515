"""The learning rate as a function of the update count."""

from __future__ import annotations

import attrs
import pytest

from petra_graph.executor.update import horizon, learning_rate
from petra_graph.plugins.stage_facts import DELAYED, UNDELAYED, Horizon
from petra_graph.spec.model import DataSpec, LrScheduleSpec, MethodSpec, Spec
from petra_graph.spec.run_tables import RunSpec


def spec(*, batch=64, accumulation=1, epochs=1, **schedule) -> Spec:
    return Spec(
        data=DataSpec(name="random", batch=batch),
        method=MethodSpec(accumulation=accumulation),
        run=RunSpec(epochs=epochs),
        lr_schedule=LrScheduleSpec(**schedule),
    )


def rates(given: Spec, count: int, *, base: float = 0.1, stage=UNDELAYED) -> list[float]:
    rate = learning_rate(given, base, lambda _: 1.0, horizon(given, 8), stage)
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


def test_warm_up_over_w_updates_is_u_plus_1_over_w():
    assert rates(spec(warmup_epochs=0.5), 6) == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1])


@pytest.mark.parametrize(("batch", "accumulation", "scale"), [(64, 4, 1), (256, 1, 1), (64, 16, 4), (32, 1, 1 / 8)])
def test_goyal_scales_by_samples_in_an_update_over_256(batch, accumulation, scale):
    given = spec(batch=batch, accumulation=accumulation, scaling="goyal")
    assert rates(given, 1) == pytest.approx([0.1 * scale])
    assert rates(attrs.evolve(given, lr_schedule=LrScheduleSpec(scaling="none")), 1) == [0.1]
    replicas = attrs.evolve(given, partition=attrs.evolve(given.partition, replicas=3))
    assert rates(replicas, 1) == pytest.approx([0.3 * scale])


LATE = attrs.evolve(DELAYED, depth=5, micro_batches=8)
"""Its gradients are 0, 1, 2, 3 and then 4 updates late, in each epoch of 8 updates."""
OF_LATE = [1, 1, 2 ** -(1 - 2 / 16), 3 ** -(1 - 3 / 16), *(4 ** -(1 - u / 16) for u in range(4, 8))]
"""Over two epochs, in the first."""


def test_late_gradients_have_a_lower_rate_at_first():
    given = spec(epochs=3, delay_epochs=2)
    found = rates(given, 24, stage=LATE, base=1.0)
    assert found[:8] == pytest.approx(OF_LATE)
    assert found[8:10] == [1, 1]  # the pipeline fills anew
    assert found[12] == pytest.approx(4 ** -(1 - 12 / 16))
    assert found[16:] == [1] * 8
    assert rates(given, 24, stage=attrs.evolve(LATE, flush="window")) == [0.1] * 24
