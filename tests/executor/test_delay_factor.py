"""The learning rate by delay, against numbers by hand."""

from __future__ import annotations

import pytest

from petra_graph.executor.delay_factor import delay_factor


@pytest.mark.parametrize(
    ("u", "delay", "annealed", "factor"),
    [
        (0, 4.0, 100, 1 / 4),  # the whole delay at first
        (50, 4.0, 100, 1 / 2),
        (75, 16.0, 100, 1 / 2),
        (100, 4.0, 100, 1.0),  # and none from T on
        (10**6, 4.0, 100, 1.0),
        (0, 1.0, 100, 1.0),
        (0, 0.25, 100, 1.0),  # a small delay never raises the rate
        (0, 0.0, 100, 1.0),
        (0, 2.5, 1, 0.4),  # a mean over a window need not be whole
        (0, 4.0, 0, 1.0),
    ],
)
def test_factor(u, delay, annealed, factor):
    assert delay_factor(u, delay, annealed) == pytest.approx(factor, rel=1e-12)


def test_it_rises_over_the_updates_and_falls_with_the_delay():
    over_updates = [delay_factor(u, 3.0, 50) for u in range(60)]
    assert over_updates == sorted(over_updates)
    assert len(set(over_updates)) == 51
    over_delays = [delay_factor(10, delay, 50) for delay in range(1, 10)]
    assert over_delays == sorted(set(over_delays), reverse=True)
