"""Launchers' variables, the values by name that all processes of a run share, and how they meet and wait for one another."""

import time
from itertools import count
from types import SimpleNamespace

import pytest
from torch._C._distributed_c10d import TCPStore

from petra_graph.runtime.store import RunStore, gpu_of, rank_info_from
from petra_graph.runtime.world import World

GIVEN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def test_what_torchrun_sets():
    info = rank_info_from({**GIVEN, "PETRA_GRAPH_JOIN_SECONDS": "5"})
    assert (info.rank, info.size, info.address, info.port, info.join_seconds) == (1, 2, "127.0.0.1", 29500, 5.0)
    assert rank_info_from({}) is rank_info_from({**GIVEN, "RANK": "0", "WORLD_SIZE": "1"}) is None


def test_what_a_launcher_restarts_finds_what_it_started_before():
    """torchrun calls all runs alike; each of its launches has a folder of its own."""

    def info(folder, attempt):
        variables = {"RUN_ID": "none", "RESTART_COUNT": attempt, "ERROR_FILE": f"/tmp/{folder}/attempt_{attempt}/0/e"}
        return rank_info_from(GIVEN | {f"TORCHELASTIC_{name}": value for name, value in variables.items()})

    assert info("a", "0").launch == info("a", "1").launch
    assert info("a", "0").launch != info("b", "0").launch
    assert info("a", "0").attempt != info("a", "1").attempt


HOSTS = ["a", "a", "b", "b"]


@pytest.mark.parametrize(
    ("visible", "chosen"),
    [
        pytest.param([["A0", "A1"]] * 2 + [["B0", "B1"]] * 2, [0, 1, 0, 1], id="all of the machine: torchrun, mpirun"),
        pytest.param([["A0"], ["A1"], ["B0"], ["B1"]], [0, 0, 0, 0], id="one of its own: srun --gpus-per-task=1"),
        pytest.param([["A0", "A1"], ["A1", "A0"], ["B1", "B0"], ["B0", "B1"]], [0, 0, 0, 0], id="in another order"),
        pytest.param([["A0", "A1"], ["A0", "A1"], ["B0"], ["B0", "B1"]], [0, 1, 0, 1], id="some of them"),
    ],
)
def test_a_gpu_for_each_process(visible, chosen):
    """Without LOCAL_RANK, as under mpirun, every rank took cuda:0; with one visible GPU a task, a run was refused."""
    assert [gpu_of(rank, visible, HOSTS) for rank in range(4)] == chosen


@pytest.fixture
def server():
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def test_processes_wait_for_an_evaluation_as_long_as_it_takes(monkeypatch):
    """Only the first replica evaluates; the others waited 300 s, then raised, and a run that was done left no weights.

    The watchdog finds processes that have died, or that hang: no wait for a live one has a limit of its own.
    """
    monkeypatch.setattr(time, "monotonic", map(float, count()).__next__)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    values, looks = iter([None] * 99 + ["done"]), []
    monkeypatch.setattr(RunStore, "get", lambda *_: next(values))
    waiting = SimpleNamespace(store=RunStore.__new__(RunStore), check=lambda: looks.append(1))
    assert World.wait(waiting, "arrived/run/0") == "done"
    assert len(looks) == 99
