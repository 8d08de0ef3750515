"""The type of a GPU, from what its driver says of it.

A GPU whose model, multiprocessors and memory are those of a data sheet in the table has that sheet's rates. The rates of any
other one are computed from its properties, and the plan warns with the figures:

    float32     2 flop * cores of a multiprocessor * multiprocessors * clock
    bfloat16    flop of a multiprocessor's tensor cores in a cycle * multiprocessors * clock
    memory      2 * memory clock * width of the bus

Cores and tensor cores follow from the compute capability (CUDA C++ Programming Guide, arithmetic instructions,
https://docs.nvidia.com/cuda/cuda-c-programming-guide/#arithmetic-instructions, and the makers' architecture papers). Where torch
does not give a clock, it is that of a usual card of the generation, and the warning says "assumed".
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from attrs import evolve, frozen

from petra_graph.program.device_types import DEVICE_TYPES, OPERATION_SECONDS, DeviceType, Link

_SAME_MEMORY = 0.12
"""A driver counts up to 8 % more or less memory than a data sheet, in other units and without what it keeps."""
_PCIE = Link(latency_seconds=1e-5, bytes_per_second=32e9)
"""PCIe 4.0 of 16 lanes, one way: no property tells of NVLink."""


@frozen
class _Generation:
    """What a compute capability has in each multiprocessor, with the clock and the bandwidth of a usual card."""

    cores: int
    """Of float32."""
    tensor_flops: int
    """Dense bfloat16 with float32 sums, in a cycle; 0: none."""
    clock_hertz: float
    bandwidth: float
    """Bytes a second for each multiprocessor."""


_GENERATIONS = {
    (3, 0): _Generation(192, 0, 0.9e9, 18e9),
    (5, 0): _Generation(128, 0, 1.1e9, 14e9),
    (6, 0): _Generation(64, 0, 1.4e9, 13e9),
    (6, 1): _Generation(128, 0, 1.6e9, 16e9),
    (7, 0): _Generation(64, 0, 1.5e9, 11e9),
    (7, 5): _Generation(64, 0, 1.6e9, 8e9),
    (8, 0): _Generation(64, 2048, 1.4e9, 16e9),
    (8, 6): _Generation(128, 512, 1.7e9, 9e9),
    (8, 9): _Generation(128, 512, 2.4e9, 6e9),
    (9, 0): _Generation(128, 4096, 1.8e9, 20e9),
    (10, 0): _Generation(128, 8192, 1.8e9, 50e9),
    (12, 0): _Generation(128, 512, 2.4e9, 10e9),
}


def gpu_type(properties: Any) -> DeviceType:
    """Return a GPU's type.

    Args:
        properties: of `torch.cuda.get_device_properties`.

    Returns:
        The type, with the GPU's own memory; `guess` says how rates that are on no data sheet here were found.
    """
    listed = _listed(properties)
    if listed is not None:
        return evolve(listed, memory_bytes=int(properties.total_memory))
    generation, known = _generation(properties)
    count = int(properties.multi_processor_count)
    clock = 1e3 * (getattr(properties, "clock_rate", 0) or 0)
    memory_clock = 1e3 * (getattr(properties, "memory_clock_rate", 0) or 0)
    width = (getattr(properties, "memory_bus_width", 0) or 0) // 8
    cycles = count * (clock or generation.clock_hertz)
    bandwidth = 2 * memory_clock * width or count * generation.bandwidth
    float32 = 2 * generation.cores * cycles
    bfloat16 = max(float32, generation.tensor_flops * cycles)
    figures = (
        f"{float32 / 1e12:.3g} Tflop/s ({count} multiprocessors of {'' if known else 'assumed '}{generation.cores} cores at "
        f"{'' if clock else 'assumed '}{cycles / count / 1e9:.3g} GHz), {bfloat16 / 1e12:.3g} in bfloat16, memory of "
        f"{'' if memory_clock and width else 'assumed '}{bandwidth / 1e9:.3g} GB/s, and an assumed link of PCIe 4.0"
    )
    return DeviceType(
        name=properties.name,
        kind="cuda",
        float32_flops=float32,
        bfloat16_flops=bfloat16,
        memory_bandwidth=bandwidth,
        memory_bytes=int(properties.total_memory),
        link=_PCIE,
        operation_seconds=OPERATION_SECONDS["cuda"],
        guess=f"{properties.name} has no data sheet here, and its rates are computed from what its driver says: {figures}",
    )


def _listed(properties: Any) -> DeviceType | None:
    """Return the type in the table of which the GPU has the model, the multiprocessors and the memory."""
    words = re.findall(r"[a-z0-9]+", properties.name.lower())
    models = {*words, *(first + second for first, second in pairwise(words))}
    found = [
        device
        for device in DEVICE_TYPES.values()
        if device.name.partition("-")[0] in models
        and device.multiprocessors == properties.multi_processor_count
        and device.memory_bytes is not None
        and abs(properties.total_memory / device.memory_bytes - 1) <= _SAME_MEMORY
    ]
    return found[0] if found else None


def _generation(properties: Any) -> tuple[_Generation, bool]:
    """Return the newest generation up to the GPU's, and whether it is the GPU's own."""
    capability = properties.major, properties.minor
    known = max((one for one in _GENERATIONS if one <= capability), default=min(_GENERATIONS))
    return _GENERATIONS[known], known[0] == capability[0]
