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
        awake.look()


def test_a_suspension_counts_as_a_late_look(clock):
    awake, began = AwakeTime(), clock.now
    look(clock, awake, 20, 0.25)
    clock.now += 3600
    assert awake.since(began) == 5 + 2
    look(clock, awake, 20, 0.25)
    look(clock, awake, 1, 7200)
    look(clock, awake, 20, 0.25)
    assert awake.seconds == 5 + 2 + 5 + 2 + 5


def test_a_busy_machine_delays_a_limit_and_does_not_lift_it(clock):
    awake = AwakeTime()
    look(clock, awake, 100, 10)
    assert awake.seconds == 200
