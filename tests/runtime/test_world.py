"""How processes meet, and how one waits for others."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from threading import Barrier, Event
from types import SimpleNamespace

import pytest
import torch
from torch._C._distributed_c10d import TCPStore

from petra_graph.errors import RunFailed, SpecError
from petra_graph.runtime import world as module
from petra_graph.runtime.store import RunStore, rank_info_from
from petra_graph.runtime.world import World


@pytest.fixture
def slow(monkeypatch):
    """A world in which a second passes between two looks at the store, and the value comes at the hundredth."""
    monkeypatch.setattr(time, "monotonic", map(float, count()).__next__)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    values = iter([None] * 99 + ["done"])
    looks = []
    monkeypatch.setattr(RunStore, "get", lambda *_: next(values))
    return SimpleNamespace(store=RunStore.__new__(RunStore), check=lambda: looks.append(1), looks=looks)


def test_processes_wait_for_an_evaluation_as_long_as_it_takes(slow):
    """Only the first replica evaluates; the others waited 300 s, then raised, and a run that was done left no weights.

    The watchdog finds processes that have died, or that hang: no wait for a live one has a limit of its own.
    """
    assert World.wait(slow, "arrived/run/0") == "done"
    assert len(slow.looks) == 99


def met(*sizes, port):
    """Let as many ranks meet at a store that a launcher keeps, each in a thread; return their worlds, or what they raised."""

    def world(rank):
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        given = {**where, "RANK": str(rank), "WORLD_SIZE": str(sizes[rank])}
        try:
            found = World(rank_info_from(given))
            found.rendezvous()
        except SpecError as error:
            return error
        return found

    with ThreadPoolExecutor(len(sizes)) as threads:
        return list(threads.map(world, range(len(sizes))))


@pytest.fixture
def server():
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def test_processes_meet_in_a_part_of_the_store_of_their_own(server):
    first, second = met(2, 2, port=server.port)
    second.store.set("asked", "SIGINT")
    # A process does not wait until the store has what it sets.
    assert first.store.wait("asked", 10) == "SIGINT"
    assert first.another_connection().get("asked") == "SIGINT"
    assert [process.rank for process in first.neighbours] == [0, 1]


def test_what_a_launcher_restarts_finds_what_it_started_before(server):
    """torchrun calls all runs alike; each of its launches has a folder of its own."""

    def info(folder, attempt):
        variables = {"RUN_ID": "none", "RESTART_COUNT": attempt, "ERROR_FILE": f"/tmp/{folder}/attempt_{attempt}/0/e"}
        launcher = {f"TORCHELASTIC_{name}": value for name, value in variables.items()}
        return rank_info_from(
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", **launcher}
        )

    assert info("a", "0").launch == info("a", "1").launch
    assert info("a", "0").launch != info("b", "0").launch
    assert info("a", "0").attempt != info("a", "1").attempt


def test_processes_that_were_told_of_other_numbers_of_processes(server):
    """They waited for the third one for a minute, or ended after it as one that was silent."""
    errors = met(2, 3, port=server.port)
    assert str(errors[0]) == (
        "rank 0 was started with WORLD_SIZE = 2, and rank 1 with 3\n    help: start all processes with the same WORLD_SIZE"
    )
    assert "rank 1 was started with WORLD_SIZE = 3, and rank 0 with 2" in str(errors[1])


def test_groups_are_aborted_together(monkeypatch):
    """NCCL's may each wait for a device on which the others' messages are; and no end of a process waits for one for ever."""
    monkeypatch.setattr(module, "_PART_SECONDS", 0.5)
    world, all_begun, never = World.__new__(World), Barrier(3, timeout=10.0), Event()

    def fails():
        all_begun.wait()
        raise RuntimeError("aborted before")

    ways = [all_begun.wait, lambda: (all_begun.wait(), never.wait()), fails]
    world._groups = [SimpleNamespace(abort=way) for way in ways]
    world.abort_groups()
    world.abort_groups()
    never.set()
    assert not all_begun.broken


def test_gloo_s_error_where_a_process_has_died_is_that_of_the_watchdog(monkeypatch):
    """Rank 0 was killed while processes connected, and gloo's text with a stack was the report."""
    monkeypatch.setattr(module, "_PART_SECONDS", 0.05)
    world, known = World.__new__(World), [None, RunFailed("rank 0 has gone without a word")]

    def check():
        if found := known.pop(0) if known else None:
            raise found

    world.check = check
    with pytest.raises(RunFailed, match=r"^rank 0 has gone without a word"), world._connecting():
        raise torch.distributed.DistBackendError("[/gloo/pair.cc:534] Connection closed by peer")
    with pytest.raises(RunFailed, match=r"^cannot connect with the other processes\n"), world._connecting():
        raise RuntimeError("Gloo connectFullMesh failed")
