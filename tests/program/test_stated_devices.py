"""Device types that a specification states itself, usable as those of the data sheets are."""

from __future__ import annotations

from attrs import evolve

from petra_graph.planning.plan_spec import Planner
from petra_graph.planning.spec_devices import planned_devices
from petra_graph.program.device_types import DEVICE_TYPES, device_types
from petra_graph.spec.load_spec import dump, load
from petra_graph.spec.run_tables import DeviceSpec, FlopsSpec, PartitionSpec
from tests.support.runs import SPEC

OWN = """
[partition.device.my_card]
memory = "24GiB"
flops = { float32 = 40e12, bfloat16 = 160e12 }
memory_bandwidth = 900e9
link_latency = 2e-5
link_bandwidth = 16e9
"""
SHEET = DEVICE_TYPES["rtx4090"]
COPY = DeviceSpec(
    memory="24GB",
    flops=FlopsSpec(float32=SHEET.float32_flops, bfloat16=SHEET.bfloat16_flops),
    memory_bandwidth=SHEET.memory_bandwidth,
)


def test_a_copy_of_a_data_sheet_is_planned_as_its_card(write):
    path = write("small.toml", SPEC)
    spec = load(path).spec
    assert spec is not None
    documents = []
    for name in ("rtx4090", "my_card"):
        partition = evolve(spec.partition, stages=2, devices=2, device_type=name, device={"my_card": COPY})
        documents.append(Planner(evolve(spec, partition=partition)).plan().as_json())
    assert documents[0]["stages"] == documents[1]["stages"]
    assert documents[0]["timing"] == documents[1]["timing"]
    assert [device["type"] for device in documents[1]["devices"]] == ["my_card"] * 2
    assert [device["capacity_bytes"] for device in documents[1]["devices"]] == [24 * 10**9] * 2
    said = documents[1]["assumptions"][0]
    assert said.startswith(
        "times are estimates from the data sheet of my_card (with the specification's figures for my_card): "
    )
    assert "the specification's figures" not in documents[0]["assumptions"][0]


def test_among_unlike_devices_with_limits():
    partition = PartitionSpec(devices=2, device_type=("my_card", "h100"), memory="60GB", device={"my_card": COPY})
    devices = planned_devices(partition)
    assert [device.type.name for device in devices] == ["my_card", "h100"]
    assert [device.memory_bytes for device in devices] == [24 * 10**9, 60 * 10**9]
    assert devices[0].link_to(devices[1]).bytes_per_second == 32e9


def test_from_a_file_and_back(write):
    spec = load(write("own.toml", SPEC + OWN + '[partition]\ndevice_type = "my_card"\n')).spec
    assert spec is not None
    own = device_types(spec.partition)["my_card"]
    assert (own.memory_bytes, own.bfloat16_flops, own.link.bytes_per_second) == (24 * 2**30, 160e12, 16e9)
    assert load(write("again.toml", dump(spec))).spec == spec
