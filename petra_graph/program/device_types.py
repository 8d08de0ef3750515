"""Rates of arithmetic, memory and links of devices, for plans made without them.

Figures are those of the makers' data sheets, and for GeForce and RTX cards those of NVIDIA's architecture papers (GA102 V2.0, Ada V2.01, RTX
Blackwell): dense float32 without TF32, dense bfloat16 with float32 sums (float32's where a GPU has none), memory bandwidth. TF32 has half
of bfloat16's rate on each of these sheets. Links are PCIe of 16 lanes, or NVLink where all devices of a machine are joined by it. `cpu` is one
core of a present-day server. A profile of the real device is better than any table.
"""

from collections.abc import Mapping
from math import inf
from typing import Literal

from attrs import evolve, field, frozen
from attrs.validators import ge, gt

from petra_graph.spec.model import PartitionSpec, Products
from petra_graph.units import byte_count

EFFICIENCY = 0.5
OPERATION_SECONDS: Mapping[str, float] = {"cpu": 6e-6, "cuda": 76e-6}
"""What the host takes for an operation of torch however small its tensors are, by kind of device: a CPU's by `tools/bench/throughput.py`, a GPU's that
of this runtime on an H100's host (`tools/bench/results/device-2026-11-26.json`: 65 to 70 microseconds in RevNet18, 90 and more in the quickstart)."""
GPU_LAUNCH_SECONDS = 4e-6
"""What the driver takes to launch a kernel (https://developer.nvidia.com/blog/cuda-graphs/); a CPU has nothing to launch."""
CUBLAS_BYTES = 8 * 4096 * 1024
"""What torch allocates for cuBLAS on a GPU, and keeps: `CUBLAS_WORKSPACE_CONFIG = ":4096:8"`, as runs set it (`training.prepared_run`)."""
MACHINE_DEVICES: Mapping[str, int] = {"cuda": 8, "cpu": 64}
"""The devices of a kind that plans take a machine to have: GPUs of an HGX server or of the cloud's largest instances, cores."""


@frozen(kw_only=True)
class Link:
    """The connection of a device to another; each direction has its own bandwidth."""

    latency_seconds: float = field(default=0.0, validator=ge(0))
    bytes_per_second: float = field(default=inf, validator=gt(0))

    def seconds(self, size: int) -> float:
        return self.latency_seconds + size / self.bytes_per_second

    def slower(self, other: "Link") -> "Link":
        return Link(
            latency_seconds=max(self.latency_seconds, other.latency_seconds),
            bytes_per_second=min(self.bytes_per_second, other.bytes_per_second),
        )


NETWORK = Link(latency_seconds=2e-5, bytes_per_second=12.5e9)
"""Between machines, where nothing is stated: Ethernet of 100 Gbit/s, one way."""


@frozen(kw_only=True)
class DeviceType:
    """A kind of device; rates are of a second."""

    name: str
    kind: Literal["cpu", "cuda"]
    float32_flops: float
    bfloat16_flops: float
    memory_bandwidth: float
    memory_bytes: int | None
    """None: unknown, without a limit."""
    link: Link
    operation_seconds: float
    """Of the host, for each dispatched operation: a CPU computes afterwards, a GPU meanwhile."""
    multiprocessors: int | None = None
    guess: str = ""
    """Where the figures are on no data sheet: a sentence on how they were found."""

    @property
    def host_seconds(self) -> float:
        return self.operation_seconds + (GPU_LAUNCH_SECONDS if self.kind == "cuda" else 0.0)

    def flops_per_second(self, products: Products) -> float:
        """Return the rate of convolutions and matrix products; a CPU has no TF32."""
        match products:
            case "bfloat16":
                return self.bfloat16_flops
            case "float64":
                return self.float32_flops / 2
            case "tf32" if self.kind == "cuda":
                return max(self.float32_flops, self.bfloat16_flops / 2)
            case _:
                return self.float32_flops


@frozen(kw_only=True)
class Device:
    """A device of a plan; the machine need not have it."""

    name: str
    type: DeviceType
    memory_bytes: int | None
    """The usable part; None: no limit."""
    link: Link
    """To devices in the same machine."""
    machine: int = 0
    network: Link | None = None
    """To devices in other machines; None: as in the same."""

    def link_to(self, other: "Device") -> Link:
        """Return the link between two devices: the slower of their own."""
        apart = self.machine != other.machine
        own, others = (device.network if apart and device.network else device.link for device in (self, other))
        return own.slower(others)


_DATA_SHEETS = (
    # Tflop/s of float32 and of bfloat16, GB/s, GB, GB/s one way, multiprocessors
    ("cpu", 0.1, 0.1, 12, None, 4, None),
    ("v100", 15.7, 15.7, 900, 32, 150, 80),
    ("t4", 8.1, 8.1, 320, 16, 16, 40),
    ("l4", 30.3, 121.0, 300, 24, 32, 58),
    ("l40", 90.5, 181.0, 864, 48, 32, 142),
    ("l40s", 91.6, 362.0, 864, 48, 32, 142),
    ("a10", 31.2, 125.0, 600, 24, 32, 72),
    ("a40", 37.4, 149.7, 696, 48, 32, 84),
    ("rtxa6000", 38.7, 154.8, 768, 48, 32, 84),
    ("rtx3080", 29.8, 59.5, 760, 10, 32, 68),
    ("rtx3090", 35.6, 71.0, 936, 24, 32, 82),
    ("rtx4080", 48.7, 97.5, 716.8, 16, 32, 76),
    ("rtx4090", 82.6, 165.0, 1008, 24, 32, 128),
    ("rtx5090", 104.8, 209.5, 1792, 32, 64, 170),
    ("a100-40gb", 19.5, 312.0, 1555, 40, 300, 108),
    ("a100-80gb", 19.5, 312.0, 2039, 80, 300, 108),
    ("h100", 67.0, 989.0, 3350, 80, 450, 132),
    ("h200", 67.0, 989.0, 4800, 141, 450, 132),
)
DEVICE_TYPES = {
    name: DeviceType(
        name=name,
        kind="cpu" if name == "cpu" else "cuda",
        float32_flops=float32 * 1e12,
        bfloat16_flops=bfloat16 * 1e12,
        memory_bandwidth=bandwidth * 1e9,
        memory_bytes=None if memory is None else memory * 10**9,
        link=Link(latency_seconds=1e-4 if name == "cpu" else 1e-5, bytes_per_second=link * 1e9),
        operation_seconds=OPERATION_SECONDS["cpu" if name == "cpu" else "cuda"],
        multiprocessors=multiprocessors,
    )
    for name, float32, bfloat16, bandwidth, memory, link, multiprocessors in _DATA_SHEETS
}


def device_types(partition: PartitionSpec) -> Mapping[str, DeviceType]:
    """Return the types that `device_type` may name; those of `[partition.device]` come first."""
    found = dict(DEVICE_TYPES)
    for name, given in partition.device.items():
        operation = given.operation_seconds
        found[name] = DeviceType(
            name=name,
            kind=given.kind,
            float32_flops=given.float32_flops,
            bfloat16_flops=given.bfloat16_flops or given.float32_flops,
            memory_bandwidth=given.memory_bandwidth,
            memory_bytes=byte_count(given.memory),
            link=Link(latency_seconds=given.link_latency, bytes_per_second=given.link_bandwidth),
            operation_seconds=OPERATION_SECONDS[given.kind] if operation is None else operation,
        )
    return found


def stated_link(partition: PartitionSpec, usual: Link) -> Link:
    """Return the usual link with the figures that the specification states."""
    stated = {"latency_seconds": partition.link_latency, "bytes_per_second": partition.link_bandwidth}
    return evolve(usual, **{key: one for key, one in stated.items() if one is not None})
