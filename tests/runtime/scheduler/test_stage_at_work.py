"""A stage's operations run on its device."""

from __future__ import annotations

import pytest
import torch

from petra_graph.errors import Interrupted, RunFailed
from petra_graph.runtime.control.run_store import StoreGone
from petra_graph.runtime.scheduler import stage_at_work
from petra_graph.runtime.scheduler.stage_at_work import current_device, named_failure
from petra_graph.spec.model import ClipSpec
from tests.support.pipelines import CHAIN, batches, pipeline


@pytest.mark.parametrize("clip", [None, ClipSpec(limit=1.0, scope="global")])
def test_a_stages_device_is_the_current_one_in_all_its_operations(monkeypatch, clip):
    """`set_device` was never called: kernels that a block launches on torch's current GPU went to cuda:0."""
    current: list[torch.device] = []

    class Entered:
        def __init__(self, device):
            self.device = device

        def __enter__(self):
            current.append(self.device)

        def __exit__(self, *_):
            current.pop()

    monkeypatch.setattr(stage_at_work, "current_device", Entered)
    built = pipeline(CHAIN, (8,), schedule="sequential", clip=clip)
    seen = []
    for executor in built.executors:
        for operation in ("forward", "backward", "update"):
            watch(executor, operation, seen, current)
    built.train(batches((8,), 1))
    assert len(seen) == 3 * len(built.executors)
    assert all(seen)


def watch(executor, operation: str, seen: list[bool], current: list[torch.device]) -> None:
    method = getattr(executor, operation)

    def watching(*arguments):
        seen.append(current == [torch.device("cpu")])
        return method(*arguments)

    setattr(executor, operation, watching)


def test_a_gpu_and_a_processor():
    gpu = current_device(torch.device("cuda:1"))
    assert isinstance(gpu, torch.cuda.device)
    assert gpu.idx == 1
    assert current_device(torch.device("cpu")) is None


@pytest.mark.parametrize("error", [StoreGone("Broken pipe"), Interrupted("SIGINT"), RunFailed("no more")])
def test_what_says_where_it_comes_from_stays(error):
    """A killed launcher was reported as a forward that had failed: a checkpoint's thread had asked the store."""
    assert named_failure(error, None, "forward of micro-batch 3") is error
