"""Launchers' variables: which process this is, where all meet, and a GPU of its own for each, whatever its launcher shows it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from petra_graph.errors import SpecError
from petra_graph.runtime.store import gpu_of, rank_info_from, visible_gpus

GIVEN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def test_what_torchrun_sets():
    info = rank_info_from({**GIVEN, "PETRA_GRAPH_JOIN_SECONDS": "5"})
    assert (info.rank, info.size, info.address, info.port) == (1, 2, "127.0.0.1", 29500)
    assert info.join_seconds == 5.0


def test_without_variables_or_for_one_process_there_is_nobody_to_meet():
    assert rank_info_from({}) is None
    assert rank_info_from({**GIVEN, "RANK": "0", "WORLD_SIZE": "1"}) is None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"MASTER_PORT": "x"}, "must be numbers"),
        ({"MASTER_ADDR": ""}, "but not MASTER_ADDR"),
        ({"RANK": "2"}, "RANK must lie in 0 .. WORLD_SIZE - 1 (got RANK = 2, WORLD_SIZE = 2)"),
        ({"PETRA_GRAPH_JOIN_SECONDS": "soon"}, "must be numbers"),
    ],
)
def test_what_cannot_be(changed, message):
    with pytest.raises(SpecError) as caught:
        rank_info_from(GIVEN | changed)
    assert message in str(caught.value)


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


@pytest.mark.parametrize(
    ("visible", "message"),
    [
        ([["A0"], ["A0"]], "rank 1 on a sees 1 CUDA device\\(s\\), in use by rank 0"),
        ([["A0"], ["A1"], ["A0", "A1"]], "rank 2 on b sees 2 CUDA device\\(s\\), in use by rank 0, rank 1"),
        ([["A0"], []], "rank 1 on a sees no CUDA device"),
    ],
)
def test_more_processes_than_gpus(visible, message):
    with pytest.raises(SpecError, match=message):
        gpu_of(len(visible) - 1, visible, HOSTS)


def test_gpus_are_known_by_what_is_unique_in_the_world(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=f"GPU-{index}"))
    assert visible_gpus() == ["GPU-0", "GPU-1"]
