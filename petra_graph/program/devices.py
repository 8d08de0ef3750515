"""Rates of arithmetic, memory and links of devices, for plans made without them.

Figures are those of the makers' data sheets: dense float32 without TF32 (which training here does not use), dense
bfloat16, memory bandwidth. No kernel reaches them, so a plan takes `EFFICIENCY` of them and says so; a profile of the real
device is better than any table. `cpu` is one core of a present-day server.
"""

from __future__ import annotations

from math import inf
from typing import Literal

from attrs import field, frozen
from attrs.validators import ge, gt

EFFICIENCY = 0.5
"""The assumed share of a data sheet's rates that convolutions and matrix products reach."""


@frozen(kw_only=True)
class Link:
    """The connection of a device to another; each direction has its own bandwidth."""

    latency_seconds: float = field(default=0.0, validator=ge(0))
    bytes_per_second: float = field(default=inf, validator=gt(0))

    def seconds(self, size: int) -> float:
        """Return the seconds that a message of `size` bytes takes."""
        return self.latency_seconds + size / self.bytes_per_second


@frozen(kw_only=True)
class DeviceType:
    """A kind of device."""

    name: str
    kind: Literal["cpu", "cuda"]
    float32_flops: float
    """A second; float64 counts as half of it."""
    bfloat16_flops: float
    """A second."""
    memory_bandwidth: float
    """Bytes a second."""
    memory_bytes: int | None
    """None: unknown, without a limit."""
    link: Link
    """To its neighbour in the same machine."""

    def flops_per_second(self, compute: str) -> float:
        """Return the rate at `precision.compute`."""
        if compute == "bfloat16":
            return self.bfloat16_flops
        return self.float32_flops / 2 if compute == "float64" else self.float32_flops


@frozen(kw_only=True)
class Device:
    """A device of a plan; the machine need not have it."""

    name: str
    type: DeviceType
    memory_bytes: int | None
    """The usable part; None: no limit."""
    link: Link
    """To its neighbours."""


def _device(
    name: str, tflops: tuple[float, float], bandwidth: float, memory: int | None, link: float, *, latency: float = 1e-5
) -> DeviceType:
    """Make a type from its data sheet's units: Tflop/s of float32 and bfloat16, GB/s, GB, GB/s one way, seconds."""
    return DeviceType(
        name=name,
        kind="cpu" if name == "cpu" else "cuda",
        float32_flops=tflops[0] * 1e12,
        bfloat16_flops=tflops[1] * 1e12,
        memory_bandwidth=bandwidth * 1e9,
        memory_bytes=None if memory is None else memory * 10**9,
        link=Link(latency_seconds=latency, bytes_per_second=link * 1e9),
    )


DEVICE_TYPES = {
    device.name: device
    for device in (
        _device("cpu", (0.1, 0.1), 12, None, 4, latency=1e-4),
        _device("v100", (15.7, 125.0), 900, 32, 150),
        _device("t4", (8.1, 65.0), 320, 16, 16),
        _device("l4", (30.3, 121.0), 300, 24, 32),
        _device("l40s", (91.6, 362.0), 864, 48, 32),
        _device("rtx3090", (35.6, 71.0), 936, 24, 32),
        _device("rtx4090", (82.6, 165.0), 1008, 24, 32),
        _device("a100-40gb", (19.5, 312.0), 1555, 40, 300),
        _device("a100-80gb", (19.5, 312.0), 2039, 80, 300),
        _device("h100", (67.0, 989.0), 3350, 80, 450),
        _device("h200", (67.0, 989.0), 4800, 141, 450),
    )
}
