"""Time in which a process is suspended counts for nothing."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from petra_graph.runtime.waiting import AwakeTime


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return clock


def look(clock, awake, count, every):
    for _ in range(count):
        clock.now += every
        found = awake.seconds
    return found


def test_a_suspension_counts_as_a_late_look(clock):
    awake = AwakeTime()
    assert look(clock, awake, 20, 0.25) == 5
    assert look(clock, awake, 1, 3600) == 5 + 2
    look(clock, awake, 20, 0.25)
    look(clock, awake, 1, 7200)
    assert look(clock, awake, 20, 0.25) == 5 + 2 + 5 + 2 + 5


def test_a_busy_machine_delays_a_limit_and_does_not_lift_it(clock):
    assert look(clock, AwakeTime(), 100, 10) == 200
