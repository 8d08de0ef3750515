"""How a stage's operations are measured beside a GPU: with one that counts, since none may be here."""

from __future__ import annotations

import time

import pytest
import torch
from attrs import define, field

from petra_graph.profiling.stopwatch import Stopwatch, Times


@define
class PretendedGpu:
    """Has 100 bytes of tensors; a kernel allocates 7 more for itself, and leaves 5 bytes behind."""

    slept: list[float] = field(factory=list)
    tensors: int = 100
    most: int = 0

    def sleep(self, seconds):
        self.slept.append(seconds)

    def mark(self):
        return lambda: 0.25

    def allocated(self):
        return self.tensors

    def forget_peak(self):
        self.most = self.tensors

    def peak(self):
        return self.most

    def kernel(self):
        self.most = max(self.most, self.tensors + 7)
        self.tensors += 5


@pytest.fixture
def gpu():
    return PretendedGpu()


@pytest.fixture
def watch(gpu):
    return Stopwatch(torch.device("cpu"), gpu)


def test_the_device_and_its_host_are_timed_apart(watch):
    for _ in range(3):
        with watch.forward(0, None):
            time.sleep(0.002)
    assert watch.spread("forward") == Times(0.25, 0.25, 0.25)
    assert watch.host_spread("forward").low >= 0.002
    assert watch.inside >= sum(watch.host_times["forward"])


def test_the_gpu_sleeps_until_its_host_has_queued_the_operation(watch, gpu):
    for _ in range(2):
        with watch.backward(0):
            time.sleep(0.002)
    first, second = gpu.slept
    assert first == 0.0
    assert second == pytest.approx(2 * watch.host_times["backward"][0])
    with watch.update():  # of another kind: not yet known
        time.sleep(0.2)
    with watch.update():
        pass
    assert gpu.slept[2:] == [0.0, 0.05]


def test_a_workspace_is_what_is_allocated_while_a_kernel_is_called(watch, gpu):
    watch.weighs = True
    with watch.update():
        gpu.kernel()
        torch.zeros(1)  # The tensors of the first kernel, 105 bytes, are seen here.
        gpu.kernel()  # It has 112 bytes while it works.
        torch.zeros(1)
    assert watch.workspace == {"update": 2}
    assert not watch.times
    watch.weighs = False
    with watch.update():
        gpu.kernel()
    assert watch.workspace == {"update": 2}
