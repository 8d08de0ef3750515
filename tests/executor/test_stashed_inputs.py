"""Inputs that wait on a CPU stage; for CUDA see tests/promises/test_cuda.py."""

from __future__ import annotations

import pytest
import torch

from petra_graph.executor.numerics import NumericsContext
from petra_graph.executor.runners import Recompute
from petra_graph.executor.stashed_inputs import ActivationStore, HostCopy, fetch, restore
from petra_graph.spec.model import PrecisionSpec
from tests.support.pipelines import CHAIN, batches, pipeline


def store(**precision) -> ActivationStore:
    return ActivationStore.of(NumericsContext(device=torch.device("cpu"), precision=PrecisionSpec(**precision), seed=0))


@pytest.mark.parametrize("device", ["stage", "cpu"])
def test_on_the_cpu_inputs_wait_as_they_are(device):
    streams = (torch.randn(3), torch.arange(3))
    held = store(buffer_device=device).keep(streams)
    assert held is streams
    fetch(held)
    for found, stream in zip(restore(held), streams, strict=True):
        assert found is stream


@pytest.mark.parametrize("device", ["stage", "cpu"])
def test_they_wait_encoded(device):
    x, tokens = torch.tensor([127.0, 0.4]), torch.arange(2)
    held = store(buffer_dtype="int8", buffer_device=device).keep((x, tokens))
    assert held[0].payload.tolist() == [127, 0]
    assert held[1] is tokens
    assert restore(held)[0].tolist() == [127.0, 0.0]


class FakeOnHost(HostCopy):
    """Streams that stand for a copy elsewhere."""

    def __init__(self, streams, number, log):
        self.streams, self.number, self.log = streams, number, log

    def fetch(self):
        if f"fetch {self.number}" not in self.log:
            self.log.append(f"fetch {self.number}")

    def recall(self):
        self.log.append(f"take {self.number}")
        return self.streams


class FakeStore:
    """Numbers what it keeps."""

    changes = True

    def __init__(self):
        self.log, self.kept = [], 0

    def keep(self, streams):
        self.log.append(f"put {self.kept}")
        self.kept += 1
        return FakeOnHost(streams, self.kept - 1, self.log)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ((3, 2, 1), "put 0, put 1, put 2, fetch 0, take 0, put 3, fetch 1, take 1, fetch 2, take 2, fetch 3, take 3"),
        (
            "sequential",
            "put 0, fetch 0, take 0, put 1, fetch 1, take 1, put 2, fetch 2, take 2, put 3, fetch 3, take 3",
        ),
    ],
)
def test_what_comes_next_is_fetched_before_its_backward(schedule, expected):
    """Under a delay as soon as the forward before is done; the first stage puts three ahead and drains at the end."""
    stages = (("stem",), ("rev0", "rev1", "rev2"), ("head",))
    built = pipeline(CHAIN, (8,), schedule=schedule, stages=stages)
    ((_, stem),) = built.executors[0].runners
    assert isinstance(stem, Recompute)
    stem.store = FakeStore()
    built.executors[0]._fetching.append(stem)
    backward = built.executors[0].backward
    built.executors[0].backward = lambda m, received: (stem.store.log.append("backward"), backward(m, received))[1]
    built.train(batches((8,), 4))
    log = ", ".join(stem.store.log)
    assert log.replace("backward, ", "") == expected
    early = schedule != "sequential"
    assert ("fetch 0, backward, take 0" in log) == early
    assert ("backward, fetch 0, take 0" in log) != early
