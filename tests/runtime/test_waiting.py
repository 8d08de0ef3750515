"""Time in which a process is suspended counts for nothing."""

from __future__ import annotations

import time

import pytest

from petra_graph.runtime.waiting import AwakeTime


class Clock:
    """A clock that a test moves on."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    def pass_in_looks(self, awake, seconds):
        for _ in range(int(4 * seconds)):
            self.now += 0.25
            awake.look()


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def test_a_suspension_counts_as_a_late_look(clock):
    awake, began = AwakeTime(), clock()
    clock.pass_in_looks(awake, 5)
    clock.now += 3600
    assert awake.since(began) == 5 + 2
    clock.pass_in_looks(awake, 5)
    clock.now += 7200
    awake.look()
    clock.pass_in_looks(awake, 5)
    assert awake.seconds == 5 + 2 + 5 + 2 + 5


def test_a_busy_machine_delays_a_limit_and_does_not_lift_it(clock):
    awake = AwakeTime()
    for _ in range(100):
        clock.now += 10
        awake.look()
    assert awake.seconds == 200
