"""The types and links of devices that a specification states, in place of those of data sheets."""

from __future__ import annotations

from collections.abc import Mapping

from petra_graph.program.device_types import DEVICE_TYPES, OPERATION_SECONDS, DeviceType, Link
from petra_graph.spec.partition import DeviceSpec, PartitionSpec
from petra_graph.units import byte_count


def device_types(partition: PartitionSpec) -> Mapping[str, DeviceType]:
    """Return the types that `device_type` may name: those of data sheets and those of `[partition.device]`."""
    return {**{name: _stated(name, given) for name, given in partition.device.items()}, **DEVICE_TYPES}


def _stated(name: str, given: DeviceSpec) -> DeviceType:
    return DeviceType(
        name=name,
        kind=given.kind,
        float32_flops=given.flops.float32,
        bfloat16_flops=given.flops.float32 if given.flops.bfloat16 is None else given.flops.bfloat16,
        tf32_flops=given.flops.tf32,
        float64_flops=given.flops.float64,
        memory_bandwidth=given.memory_bandwidth,
        memory_bytes=byte_count(given.memory),
        link=Link(latency_seconds=given.link_latency, bytes_per_second=given.link_bandwidth),
        operation_seconds=OPERATION_SECONDS[given.kind] if given.operation_seconds is None else given.operation_seconds,
    )


def stated_link(partition: PartitionSpec, usual: Link) -> Link:
    """Return the usual link, with the figures that the specification states in place of its own."""
    latency, bandwidth = partition.link_latency, partition.link_bandwidth
    return Link(
        latency_seconds=usual.latency_seconds if latency is None else latency,
        bytes_per_second=usual.bytes_per_second if bandwidth is None else bandwidth,
    )
