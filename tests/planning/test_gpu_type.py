"""The types of GPUs, from what their drivers say; no GPU is needed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from petra_graph.planning.plan_spec import plan
from petra_graph.planning.spec_devices import gpu_type, planned_devices, present_devices
from petra_graph.program.device_types import DEVICE_TYPES
from petra_graph.spec.run_tables import PartitionSpec
from tests.support.runs import SPEC

GIB = 2**30


def properties(name, count, gib, capability):
    """Return what torch says of a GPU."""
    return SimpleNamespace(
        name=name,
        multi_processor_count=count,
        total_memory=int(gib * GIB),
        major=capability[0],
        minor=capability[1],
    )


LISTED = {
    "a10": properties("NVIDIA A10", 72, 22.1, (8, 6)),
    "a40": properties("NVIDIA A40", 84, 44.4, (8, 6)),
    "rtx3080": properties("NVIDIA GeForce RTX 3080", 68, 9.8, (8, 6)),
    "rtx4080": properties("NVIDIA GeForce RTX 4080", 76, 15.7, (8, 9)),
    "rtx5090": properties("NVIDIA GeForce RTX 5090", 170, 31.4, (12, 0)),
    "rtxa6000": properties("NVIDIA RTX A6000", 84, 47.5, (8, 6)),
    "a100-40gb": properties("NVIDIA A100-SXM4-40GB", 108, 39.4, (8, 0)),
    "a100-80gb": properties("NVIDIA A100 80GB PCIe", 108, 79.2, (8, 0)),
    "h100": properties("NVIDIA H100 80GB HBM3", 132, 79.1, (9, 0)),
    "h200": properties("NVIDIA H200", 132, 139.8, (9, 0)),
    "l4": properties("NVIDIA L4", 58, 22.0, (8, 9)),
    "l40": properties("NVIDIA L40", 142, 44.4, (8, 9)),
    "l40s": properties("NVIDIA L40S", 142, 44.4, (8, 9)),
    "rtx3090": properties("NVIDIA GeForce RTX 3090", 82, 23.7, (8, 6)),
    "rtx4090": properties("NVIDIA GeForce RTX 4090", 128, 23.5, (8, 9)),
    "t4": properties("Tesla T4", 40, 14.6, (7, 5)),
    "v100": properties("Tesla V100-SXM2-32GB", 80, 31.7, (7, 0)),
}
UNLISTED = properties("NVIDIA A10G", 80, 22.1, (8, 6))


@pytest.fixture
def gpus(monkeypatch):
    """Let torch see GPUs of these properties."""

    def here(*found):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(found))
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: found[index])

    return here


@pytest.mark.parametrize("name", LISTED)
def test_a_gpu_of_the_table_is_known_by_its_properties(name):
    """An A100 of 40 GB was taken for one of 80, and an L40 for an L4."""
    found = gpu_type(LISTED[name])
    assert (found.name, found.guess) == (name, "")
    assert found.float32_flops == DEVICE_TYPES[name].float32_flops
    assert found.memory_bytes == LISTED[name].total_memory


def test_a_gpu_that_is_not_listed_says_whose_rates_it_has():
    found = gpu_type(UNLISTED)
    assert (found.name, found.memory_bytes) == (UNLISTED.name, UNLISTED.total_memory)
    assert "is planned with the rates of a100-40gb" in found.guess


def test_each_gpu_has_its_own_type(gpus):
    gpus(LISTED["h100"], LISTED["t4"])
    names = present_devices(PartitionSpec(devices=2))
    assert [device.type.name for device in planned_devices(PartitionSpec(devices=2), names)] == ["h100", "t4"]
    mixed = planned_devices(PartitionSpec(devices=("cpu", "cuda:1")))
    assert [device.type.name for device in mixed] == ["cpu", "t4"]
    four = planned_devices(PartitionSpec(devices=4))
    assert [device.type.name for device in four] == ["h100", "t4", "h100", "h100"]
    assert [bool(device.type.guess) for device in four] == [False, False, True, True]


def test_a_plan_warns_of_guesses(gpus, write):
    gpus(UNLISTED)
    (warning, *_) = plan(write("small.toml", SPEC)).as_json()["warnings"]
    assert warning.startswith("NVIDIA A10G has no data sheet here")
    assert "set partition.device_type, or partition.profile" in warning


def test_a_gpu_that_is_named_where_none_is_warns(write):
    document = plan(write("small.toml", SPEC), ['partition.devices=["cuda:0"]']).as_json()
    assert document["warnings"][0].startswith("cuda:0 is taken to be a CPU core, since no GPU is here")


def test_devices_beyond_a_machine_s_are_on_a_network():
    devices = planned_devices(PartitionSpec(devices=16, device_type="h100"))
    assert [device.machine for device in devices] == [0] * 8 + [1] * 8
    assert devices[6].link_to(devices[7]).bytes_per_second == 450e9
    assert devices[7].link_to(devices[8]).bytes_per_second == 12.5e9
    stated = planned_devices(PartitionSpec(devices=16, device_type="h100", link_bandwidth=1e9))
    assert stated[7].link_to(stated[8]).bytes_per_second == 1e9
