"""The devices that a specification speaks of, those that are here, and their types, from data sheets, drivers or tables of one's own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from petra_graph.errors import SpecError
from petra_graph.planning.place_network import gpu_type, planned_devices, present_devices
from petra_graph.program.device_types import DEVICE_TYPES
from petra_graph.spec.model import PartitionSpec
from tests.support.runs import SPEC, plan


def test_no_limit_is_above_what_a_device_has():
    """24GiB for a card of 24 GB planned 103.8 % of it."""
    devices = planned_devices(
        PartitionSpec(devices=3, device_type=("rtx4090", "rtx4090", "cpu"), memory=("24GiB", "22GiB", "240GiB"))
    )
    assert [device.memory_bytes for device in devices] == [24 * 10**9, 22 * 2**30, 240 * 2**30]


def test_a_run_needs_devices_that_are_here():
    with pytest.raises(SpecError, match="does not exist here"):
        present_devices(PartitionSpec(devices=("cpu", "cuda:99")))
    assert present_devices(PartitionSpec(devices=("cpu",))) == ("cpu",)


GIB = 2**30


def properties(name, count, gib):
    """Return what torch says of a GPU."""
    return SimpleNamespace(name=name, multi_processor_count=count, total_memory=int(gib * GIB))


LISTED = {
    "a100-40gb": properties("NVIDIA A100-SXM4-40GB", 108, 39.4),
    "a100-80gb": properties("NVIDIA A100 80GB PCIe", 108, 79.2),
    "h100": properties("NVIDIA H100 80GB HBM3", 132, 79.1),
    "l4": properties("NVIDIA L4", 58, 22.0),
    "l40": properties("NVIDIA L40", 142, 44.4),
    "l40s": properties("NVIDIA L40S", 142, 44.4),
    "rtx4090": properties("NVIDIA GeForce RTX 4090", 128, 23.5),
    "t4": properties("Tesla T4", 40, 14.6),
}
UNLISTED = properties("NVIDIA A10G", 80, 22.1)


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


@pytest.mark.parametrize(
    ("asked", "available", "expected"),
    [(1, 0, ("cpu", "cpu")), (2, 2, ("cuda:0", "cuda:1")), (("cpu",) * 5, 2, ("cpu", "cpu"))],
)
def test_each_process_is_a_device(gpus, asked, available, expected):
    gpus(*[LISTED["h100"]] * available)
    assert present_devices(PartitionSpec(devices=asked), 2) == expected


@pytest.mark.parametrize("asked", [3, ("cpu", "cuda:0")])
def test_other_devices_than_processes_are_refused(asked):
    with pytest.raises(SpecError, match=r"partition\.devices is"):
        present_devices(PartitionSpec(devices=asked), 2)
