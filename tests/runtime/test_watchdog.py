"""The watchdog of rank 0 of two processes, with a clock and a store that a test moves on."""

import os
import time
from types import SimpleNamespace

import pytest

from petra_graph.runtime import watchdog as module
from petra_graph.runtime.watchdog import Watchdog
from petra_graph.runtime.world import ProcessInfo


class Values(dict):
    """A store without a server."""

    set = dict.__setitem__
    set_default = dict.setdefault

    def beside(self, _):
        return Values()


class Watched:
    """Rank 0's watchdog, whose beats a test calls; rank 1 beats where the test says so."""

    def __init__(self, monkeypatch):
        self.now, self.store, self.ended = 1000.0, Values(), []
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(module, "Thread", lambda **_: SimpleNamespace(start=lambda: None))
        neighbours = tuple(
            ProcessInfo(process=os.getpid(), host="here", machine=str(rank), size=2, drawn="") for rank in (0, 1)
        )
        world = SimpleNamespace(
            rank=0,
            size=2,
            rank_info=SimpleNamespace(launch=""),
            store=self.store,
            neighbours=neighbours,
            share_machine=lambda _: False,
            another_connection=lambda: self.store,
        )
        self.watchdog = Watchdog(world)
        self.watchdog.limit_seconds = 300.0
        self.watchdog.on_stuck = self.ended.append

    def beat(self, seconds=0.25, *, other=True):
        self.now += seconds
        if other:
            self.store["status/1"] = {"at": self.now, "status": None, "seconds": 0.0, "waits": False}
        self.watchdog._heartbeat([])
        self.watchdog._enforce()

    def beats(self, seconds, *, other=True):
        for _ in range(int(4 * seconds)):
            self.beat(other=other)

    @property
    def said(self):
        return self.watchdog.failure and self.watchdog.failure.problems[0][0]


@pytest.fixture
def watched(monkeypatch):
    return Watched(monkeypatch)


class Working:
    """An operation that computes."""

    channel = None

    def __init__(self, since):
        self.since = since

    def __str__(self):
        return "forward"


def test_a_rank_that_is_silent_while_others_are_awake(watched):
    watched.beats(5)
    watched.beats(29, other=False)
    assert watched.said is None
    watched.beats(2, other=False)
    assert "rank 1 (no stage; " in watched.said
    assert "has been silent for 30 s" in watched.said


def test_the_first_that_wakes_waits_for_the_others(watched):
    """A job that was suspended for a minute died: the watchdog that woke first took an old heartbeat for silence."""
    watched.beats(5)
    watched.beats(20, other=False)
    watched.beat(3600.0, other=False)
    watched.beats(7, other=False)
    assert watched.said is None
    watched.beats(2, other=False)
    assert "has been silent" in watched.said, "a rank that does not wake is found all the same"


def test_an_operation_is_given_its_time_awake(watched):
    watched.watchdog.limit_seconds = 300.0
    watched.watchdog.status = Working(since=watched.now)
    watched.beats(290)
    watched.beat(3600.0)
    assert watched.said is None
    assert watched.store["status/0"]["seconds"] == 290 - 0.25 + 2, (
        "since it was seen first; what other watchdogs judge by"
    )
    watched.beats(10)
    assert "has taken 300 s, and run.watchdog allows 300" in watched.said


def test_a_connection_that_was_lost_before_a_suspension(watched):
    """Its cause may be published by whoever wakes later."""
    watched.watchdog.lost("a -> b", 1, ConnectionError("reset"))
    watched.beat()
    watched.beat(3600.0)
    assert watched.said is None
    watched.beats(2)
    assert "a -> b: rank 1 does not answer any more: reset" in watched.said


@pytest.mark.parametrize("asked_here", [True, False])
def test_a_request_to_stop_ends_a_start(watched, asked_here):
    watched.watchdog.starting = True
    if asked_here:
        watched.watchdog.ask("SIGINT")
    else:
        watched.store["asked"] = "SIGINT"
    watched.beats(1)
    assert watched.watchdog.failure.exit_code == 130
    assert watched.watchdog._launch["final"] == 130, "no launcher starts it again"
    watched.beats(3)
    assert watched.ended


def test_a_process_does_not_outlive_its_launcher(watched, monkeypatch):
    """Another machine's store may still be there."""
    watched.beats(1)
    assert watched.said is None
    monkeypatch.setattr(os, "getppid", lambda: 1)
    watched.beat()
    assert watched.said == "the launcher has gone"


def waiting(since):
    found = Working(since)
    found.channel = "a <- b"
    return found


@pytest.mark.parametrize("other_waits", [True, False])
def test_waits_that_can_never_end(watched, other_waits):
    watched.watchdog.status = waiting(since=watched.now)
    began = watched.now
    for _ in range(4 * 301):
        watched.store["status/1"] = {
            "at": watched.now,
            "status": "backward",
            "seconds": watched.now - began,
            "waits": other_waits,
        }
        watched.beat(other=False)
    expected = "all wait for one another for more than 300 s (run.watchdog): rank 0: forward; rank 1: backward"
    assert watched.said == (expected if other_waits else None)
