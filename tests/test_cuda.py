"""What must hold on a GPU, and between a GPU and the CPU; skipped where there is none."""

from __future__ import annotations

import pytest
import torch

from tests.pipelines import REVNET, SHAPES, batches, pipeline, relative_error

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")

FLOAT64_ACROSS_DEVICES = 1e-9


@pytest.mark.parametrize("devices", [("cuda:0",), ("cpu", "cuda:0"), ("cuda:0", "cpu")])
@pytest.mark.parametrize("schedule", ["sequential", "1f1b", "lockstep"])
def test_any_mix_of_devices_gives_the_cpus_numbers(devices, schedule):
    data = batches(SHAPES["revnet"], 12)
    one = pipeline(REVNET, SHAPES["revnet"], schedule=schedule, devices=("cpu",))
    other = pipeline(REVNET, SHAPES["revnet"], schedule=schedule, devices=devices)
    for built in (one, other):
        built.train(data)
    on_cpu = {key: value.cpu() for key, value in other.parameters().items()}
    assert relative_error(on_cpu, one.parameters()) < FLOAT64_ACROSS_DEVICES


def test_same_seed_gives_the_same_bits_on_a_gpu():
    torch.use_deterministic_algorithms(True)
    try:
        runs = [pipeline(REVNET, SHAPES["revnet"], compute="float32", devices=("cuda:0",)) for _ in range(2)]
        for built in runs:
            built.train(batches(SHAPES["revnet"], 12))
    finally:
        torch.use_deterministic_algorithms(False)
    one, other = (built.parameters() for built in runs)
    assert all(torch.equal(one[key], other[key]) for key in one)
