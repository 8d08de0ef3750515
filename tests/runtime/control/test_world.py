"""Waits of one process for others."""

from __future__ import annotations

import time
from itertools import count
from types import SimpleNamespace

import pytest

from petra_graph.errors import RunFailed
from petra_graph.runtime.control.world import World


@pytest.fixture
def slow(monkeypatch):
    """A world in which a second passes between two looks at the store, and the value comes at the hundredth."""
    monkeypatch.setattr(time, "monotonic", map(float, count()).__next__)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    values = iter([None] * 99 + ["done"])
    looks = []
    return SimpleNamespace(
        store=SimpleNamespace(get=lambda _: next(values)), check=lambda: looks.append(1), looks=looks
    )


def test_processes_wait_for_an_evaluation_as_long_as_it_takes(slow):
    """Only the first replica evaluates; the others waited 300 s, then raised, and a run that was done left no weights.

    The watchdog finds processes that have died, or that hang: no wait for a live one has a limit of its own.
    """
    assert World.wait(slow, "arrived/run/0") == "done"
    assert len(slow.looks) == 99


def test_a_wait_that_has_a_limit(slow):
    with pytest.raises(RunFailed, match=r"arrived/process/0 has not come within 60 s"):
        World.wait(slow, "arrived/process/0", 60.0)
