"""The devices of a specification: those that are present for a run, or those that a plan assumes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from attrs import evolve

from petra_graph.compiler.spec_checks import device_count, device_problems, refuse
from petra_graph.errors import Problem, SpecError, shown
from petra_graph.program.device_types import (
    DEVICE_TYPES,
    MACHINE_DEVICES,
    NETWORK,
    Device,
    DeviceType,
    Link,
    device_types,
    stated_link,
)
from petra_graph.spec.model import PartitionSpec
from petra_graph.units import byte_count

_SAME_MEMORY = 0.12
"""A driver counts up to 8 % more or less memory than a data sheet, in other units and without what it keeps."""
_PCIE = Link(latency_seconds=1e-5, bytes_per_second=32e9)
"""PCIe 4.0 of 16 lanes, one way: no property tells of NVLink."""
_UNLISTED = "a100-40gb"
"""The type whose rates a card has that no data sheet here is of."""


def present_devices(partition: PartitionSpec, processes: int = 1) -> tuple[str, ...]:
    """Return the names of a run's devices, in order; of several processes each one's, in the order of ranks, named as if all were on one machine.

    A number means the first CUDA devices, or the CPU where torch sees none. On CUDA each process has the device of its local rank.
    SpecError: a device does not exist here, or the number of devices is not that of the processes, or these are of different kinds.
    """
    devices, available, path = partition.devices, torch.cuda.device_count(), ("partition", "devices")
    if processes > 1:
        kinds = {"cuda" if available else "cpu"}
        if not isinstance(devices, int):
            kinds = {name.partition(":")[0] for name in devices}
        if len(kinds) > 1 or (isinstance(devices, int) and devices not in {1, processes}):
            message = (
                f"partition.devices is {shown(devices)}, but each of {processes} processes is a device, all of one kind"
            )
            raise SpecError(Problem(message=message, hint='leave it out, or set ["cpu"] or ["cuda"]', path=path))
        return tuple("cpu" if kinds == {"cpu"} else f"cuda:{rank}" for rank in range(processes))
    if isinstance(devices, int):
        if available == 0:
            return ("cpu",)
        devices = tuple(f"cuda:{index}" for index in range(devices))
    here = [f"cuda:{index}" for index in range(available)]
    absent = [name for name in devices if name != "cpu" and name not in here]
    hint = f"allowed: {', '.join(['cpu', *here])}"
    refuse(Problem(message=f"device {shown(name)} does not exist here", hint=hint, path=path) for name in absent)
    return tuple(devices)


def planned_devices(partition: PartitionSpec, names: tuple[str, ...] | None = None) -> tuple[Device, ...]:
    """Return the devices with their types, limits and links; no limit is above what a device has.

    `names` are those of the devices that are present; None: those that the specification names, which need not exist.
    SpecError: a type is unknown, or lists do not match in length.
    """
    refuse(device_problems(partition))
    count, known = device_count(partition) if names is None else len(names), device_types(partition)
    each = [(one,) * count if isinstance(one, str) else one or () for one in (partition.device_type, partition.memory)]
    types = [known[name] for name in each[0]][:count]
    limits: Sequence[int | None] = [byte_count(size) for size in each[1]] or [None] * count
    if any(not name.startswith(kind.kind) for name, kind in zip(names or (), types, strict=False)):
        # The present devices are of another kind than the planned ones, whose memory is not theirs.
        types, limits = [], [None] * count
    assigned = names or _names(partition, types, count)
    types = types or [_type_here(name) for name in assigned]
    return tuple(
        Device(
            name=name,
            type=device,
            memory_bytes=None if limit is None else min(limit, device.memory_bytes or limit),
            link=stated_link(partition, device.link),
            machine=machine_of(index, device) if names is None else 0,
            network=stated_link(partition, device.link.slower(NETWORK)),
        )
        for index, (name, device, limit) in enumerate(zip(assigned, types, limits[:count], strict=True))
    )


def machine_of(index: int, device: DeviceType) -> int:
    """Return the machine, counted from 0, of the device at a place in the pipeline; machines are filled in order."""
    return index // MACHINE_DEVICES[device.kind]


def _names(partition: PartitionSpec, types: Sequence[DeviceType], count: int) -> tuple[str, ...]:
    if not isinstance(partition.devices, int):
        return tuple(dict.fromkeys(partition.devices))
    kinds = [device.kind for device in types] or ["cuda" if torch.cuda.is_available() else "cpu"] * count
    return ("cpu",) if kinds == ["cpu"] else tuple(f"{kind}:{index}" for index, kind in enumerate(kinds))


def _type_here(name: str) -> DeviceType:
    """Return the type of a device of this machine; of its first one, with a guess, where it has none of that name."""
    kind, _, index = name.partition(":")
    here = torch.cuda.device_count() if kind == "cuda" and torch.cuda.is_available() else 0
    if not here:
        guess = f"{name} is taken to be a CPU core, since no GPU is here" if kind == "cuda" else ""
        return evolve(DEVICE_TYPES["cpu"], guess=guess)
    place = int(index) if index.isdecimal() else 0
    found = gpu_type(torch.cuda.get_device_properties(place if place < here else 0))
    if place < here or found.guess:
        return found
    return evolve(found, guess=f"{name} is not here, and is taken to be {found.name} as cuda:0 is")


def gpu_type(properties: Any) -> DeviceType:
    """Return a GPU's type by `torch.cuda.get_device_properties`, with the GPU's own memory.

    One whose model, multiprocessors and memory are those of a data sheet in the table has that sheet's rates. Any other one has those of
    one card, and `guess` says so: stages are cut alike on alike devices, whatever their rates.
    """
    words = re.findall(r"[a-z0-9]+", properties.name.lower())
    models = {*words, *(first + second for first, second in pairwise(words))}
    memory, count = int(properties.total_memory), int(properties.multi_processor_count)
    for device in DEVICE_TYPES.values():
        alike = device.name.partition("-")[0] in models and device.multiprocessors == count
        if alike and device.memory_bytes is not None and abs(memory / device.memory_bytes - 1) <= _SAME_MEMORY:
            return evolve(device, memory_bytes=memory)

    guess = (
        f"{properties.name} has no data sheet here, and is planned with the rates of {_UNLISTED} and a link of PCIe 4.0"
    )
    card = DEVICE_TYPES[_UNLISTED]
    return evolve(card, name=properties.name, memory_bytes=memory, link=_PCIE, multiprocessors=count, guess=guess)
