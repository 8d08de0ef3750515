"""The tables of a specification about devices and stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attrs import frozen

from petra_graph.spec.bounds import AtLeast, GreaterThan, Length
from petra_graph.spec.keys import (
    MOST_NODES,
    documented,
    key,
    required,
    sizes,
    tables,
)


@documented
@frozen(kw_only=True)
class FlopsSpec:
    """Floating-point operations a second, dense, as a data sheet has them."""

    float32: float = required("in float32, without TF32", unit="FLOP/s", validator=GreaterThan(0))
    tf32: float | None = key(
        None, "in TF32; default: half of bfloat16's, at least float32's", unit="FLOP/s", validator=GreaterThan(0)
    )
    bfloat16: float | None = key(None, "in bfloat16; default: float32's", unit="FLOP/s", validator=GreaterThan(0))
    float64: float | None = key(None, "in float64; default: half of float32's", unit="FLOP/s", validator=GreaterThan(0))


@documented
@frozen(kw_only=True)
class DeviceSpec:
    """A device type that no data sheet here has; `device_type` may name it."""

    kind: Literal["cuda", "cpu"] = key("cuda", "a GPU, or a core of a CPU")
    memory: str = required('memory, as in "24GiB"', validator=sizes)
    flops: FlopsSpec = required("rate of arithmetic by type")
    memory_bandwidth: float = required("bandwidth of its memory", unit="bytes a second", validator=GreaterThan(0))
    link_latency: float = key(
        1e-5, "latency to its neighbour in the same machine", unit="seconds", validator=AtLeast(0)
    )
    link_bandwidth: float = key(
        32e9,
        "bandwidth to its neighbour in the same machine, one way; default: PCIe 4.0 of 16 lanes",
        unit="bytes a second",
        validator=GreaterThan(0),
    )
    operation_seconds: float | None = key(
        None,
        "what the host takes for an operation of torch, however small its tensors are; default: measured beside one H100, or on one CPU",
        unit="seconds",
        validator=AtLeast(0),
    )


@documented
@frozen(kw_only=True)
class PartitionSpec:
    """Stages of nodes, and devices of stages."""

    stages: Literal["per-block", "auto"] | int | tuple[tuple[str, ...], ...] = key(
        "per-block",
        'one stage a node ("per-block"), the number of stages to cut by cost, or each stage as a list of node names; "auto": the '
        "fewest stages, on at most the given devices, that come within 5 % of the throughput of the best number",
        validator=[AtLeast(1), MOST_NODES],
    )
    profile: str | None = key(
        None,
        "file of times that `petra-graph profile` measured, for cuts and predictions; default: estimates",
        is_path=True,
    )
    devices: int | tuple[str, ...] = key(
        1,
        'devices of each replica: their number, or names: ["cuda:0", "cpu"]',
        validator=[AtLeast(1), Length(at_least=1)],
    )
    replicas: int = key(
        1,
        "copies of the pipeline, each with processes and rows of a micro-batch of its own",
        validator=AtLeast(1),
    )
    untie: bool = key(
        False,
        "nodes of several stages that share a parameter each update a copy of their own, equal at the start, which is another model; "
        "otherwise they are refused",
    )
    device_type: str | tuple[str, ...] | None = key(
        None, "device type that plans assume, one for all devices or one each; default: this machine's"
    )
    device: Mapping[str, DeviceSpec] = tables("device types of your own, by the names that device_type gives them")
    memory: str | tuple[str, ...] | None = key(
        None,
        'memory limit of a device, as in "40GiB", one for all or one each, at most what it has; default: what it has',
        validator=sizes,
    )
    link_latency: float | None = key(
        None,
        "latency between devices, for plans; default: the device type's",
        unit="seconds",
        validator=AtLeast(0),
    )
    link_bandwidth: float | None = key(
        None,
        "bandwidth between devices, for plans; default: the device type's",
        unit="bytes a second",
        validator=GreaterThan(0),
    )
