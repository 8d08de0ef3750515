"""The devices that a specification speaks of, and those that are here."""

from __future__ import annotations

import pytest

from petra_graph.errors import SpecError
from petra_graph.planning.spec_devices import planned_devices, present_devices
from petra_graph.spec.run_tables import PartitionSpec


def test_a_number_is_so_many_of_a_type():
    devices = planned_devices(PartitionSpec(devices=2, device_type="h100"))
    assert [device.name for device in devices] == ["cuda:0", "cuda:1"]
    assert [device.type.name for device in devices] == ["h100", "h100"]
    assert devices[0].memory_bytes is None


def test_each_its_own():
    devices = planned_devices(
        PartitionSpec(
            devices=("cuda:0", "cuda:3"), device_type=("h100", "t4"), memory=("40GiB", "8GB"), link_latency=0.25
        )
    )
    assert [device.name for device in devices] == ["cuda:0", "cuda:3"]
    assert [device.memory_bytes for device in devices] == [40 * 2**30, 8 * 10**9]
    assert {device.link.latency_seconds for device in devices} == {0.25}
    assert [device.link.bytes_per_second for device in devices] == [450e9, 16e9]


def test_no_limit_is_above_what_a_device_has():
    """24GiB for a card of 24 GB planned 103.8 % of it."""
    devices = planned_devices(
        PartitionSpec(devices=3, device_type=("rtx4090", "rtx4090", "cpu"), memory=("24GiB", "22GiB", "240GiB"))
    )
    assert [device.memory_bytes for device in devices] == [24 * 10**9, 22 * 2**30, 240 * 2**30]


def test_one_that_is_listed_for_several_stages_is_one():
    assert [device.name for device in planned_devices(PartitionSpec(devices=("cpu", "cpu", "cpu")))] == ["cpu"]


def test_lists_of_other_lengths():
    with pytest.raises(SpecError) as caught:
        planned_devices(PartitionSpec(devices=3, device_type=("h100", "abacus"), memory=("1GB",)))
    assert [problem.path for problem in caught.value.problems] == [
        ("partition", "device_type"),
        ("partition", "memory"),
        ("partition", "device_type"),
    ]
    assert "unknown device type" in caught.value.problems[2].message


def test_a_run_needs_devices_that_are_here():
    with pytest.raises(SpecError, match="does not exist here"):
        present_devices(PartitionSpec(devices=("cpu", "cuda:99")))
    assert present_devices(PartitionSpec(devices=("cpu",))) == ("cpu",)
