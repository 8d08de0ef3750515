"""Values by name, which all processes of a run share."""

from __future__ import annotations

import time
from itertools import count

import pytest
from torch._C._distributed_c10d import TCPStore

from petra_graph.errors import RunFailed
from petra_graph.runtime.store import RunStore, StoreGone


@pytest.fixture
def server():
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def test_a_wait_for_a_value_that_does_not_come(server, monkeypatch):
    monkeypatch.setattr(time, "monotonic", map(float, count()).__next__)
    with pytest.raises(RunFailed, match="rank 1 has not come within 60 s"):
        RunStore(server, "run").wait("process/1", 60.0, "rank 1 has not come")


def test_a_store_that_has_gone_is_told_from_other_errors():
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store = RunStore(TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False), "run")
    del server
    with pytest.raises(StoreGone):
        store.get("asked")
    with pytest.raises(StoreGone):
        store.set_default("failure", {})


def test_a_value_that_came_before_a_failure_is_returned(server):
    store = RunStore(server, "run")

    def fails():
        store.set("directory", "a")
        raise RunFailed("rank 1 has gone")

    assert store.wait("directory", check=fails) == "a"
    with pytest.raises(RunFailed, match="rank 1 has gone"):
        store.wait("never", check=fails)
