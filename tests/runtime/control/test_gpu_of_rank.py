"""Each process has a GPU of its own, whatever its launcher shows it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from petra_graph.errors import SpecError
from petra_graph.runtime.control.gpu_of_rank import gpu_of, visible_gpus

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
        ([["A0"], ["A0"]], "rank 1 on a sees 1 CUDA device, which rank 0 uses"),
        ([["A0"], ["A1"], ["A0", "A1"]], "rank 2 on b sees 2 CUDA devices, which ranks 0, 1 use"),
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
