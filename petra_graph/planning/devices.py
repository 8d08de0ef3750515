"""Which devices a specification means: those that are here for a run, those that are spoken of for a plan."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from petra_graph.compiler.processes import process_devices
from petra_graph.errors import Problem, SpecError, shown, suggestion
from petra_graph.program.devices import DEVICE_TYPES, Device, DeviceType, Link
from petra_graph.spec.model import PartitionSpec
from petra_graph.spec.sizes import byte_count

_DEVICES = ("partition", "devices")


def present_devices(partition: PartitionSpec, processes: int = 1) -> tuple[str, ...]:
    """Return the names of a run's devices, in order.

    A number means the first CUDA devices, or where torch sees none, the CPU. Several processes have one device each.

    Raises:
        SpecError: a device does not exist here.
    """
    asked = partition.devices
    available = torch.cuda.device_count()
    if processes > 1:
        return process_devices(partition, processes, "cuda" if available else "cpu")
    if isinstance(asked, int):
        if available == 0:
            return ("cpu",)
        asked = tuple(f"cuda:{index}" for index in range(asked))
    problems = [
        Problem(
            message=f"device {shown(name)} does not exist here",
            hint=f"allowed: cpu{''.join(f', cuda:{index}' for index in range(available))}",
            path=_DEVICES,
        )
        for name in asked
        if not _exists(name, available)
    ]
    if not asked:
        problems.append(Problem(message="no device is listed", hint='["cpu"]', path=_DEVICES))
    if problems:
        raise SpecError(problems)
    return tuple(asked)


def planned_devices(partition: PartitionSpec, names: tuple[str, ...] | None = None) -> tuple[Device, ...]:
    """Return the devices with their types, limits and links.

    Args:
        partition: what the specification says.
        names: the devices that are really there; None: those that the specification speaks of, which need not exist.

    Raises:
        SpecError: a type is not known, or lists do not match in length.
    """
    problems = list(_problems(partition, _count(partition)))
    if problems:
        raise SpecError(problems)
    count = len(names) if names is not None else _count(partition)
    types = tuple(DEVICE_TYPES[name] for name in _each(partition.device_type, count))[:count]
    if names is not None and any(not name.startswith(taken.kind) for name, taken in zip(names, types, strict=False)):
        types = ()  # what is here is of another kind than what was planned for
    types = types or _found(names, count)
    asked = names or _names(partition, types)
    limits = tuple(byte_count(size) for size in _each(partition.memory, count)) or (None,) * count
    return tuple(
        Device(name=name, type=device, memory_bytes=limit, link=_link(partition, device.link))
        for name, device, limit in zip(asked, types[:count], limits[:count], strict=True)
    )


def _exists(name: str, available: int) -> bool:
    kind, _, index = name.partition(":")
    if kind == "cuda" and index.isdecimal():
        return int(index) < available
    return name == "cpu"


def _count(partition: PartitionSpec) -> int:
    return partition.devices if isinstance(partition.devices, int) else len(set(partition.devices))


def _names(partition: PartitionSpec, types: tuple[DeviceType, ...]) -> tuple[str, ...]:
    if not isinstance(partition.devices, int):
        return tuple(dict.fromkeys(partition.devices))
    if len(types) == 1 and types[0].kind == "cpu":
        return ("cpu",)
    return tuple(f"{device.kind}:{index}" for index, device in enumerate(types))


def _each(given: str | tuple[str, ...] | None, count: int) -> tuple[str, ...]:
    """Return one value a device; nothing where nothing is given."""
    if given is None:
        return ()
    return (given,) * count if isinstance(given, str) else given


def _problems(partition: PartitionSpec, count: int) -> Iterator[Problem]:
    for key, given in (("device_type", partition.device_type), ("memory", partition.memory)):
        if isinstance(given, tuple) and len(given) != count:
            yield Problem(
                message=f"{key} lists {len(given)} values for {count} devices",
                hint="give one value for all, or one a device",
                path=("partition", key),
            )
    for name in dict.fromkeys(_each(partition.device_type, count)):
        if name not in DEVICE_TYPES:
            yield Problem(
                message=f"unknown device type {shown(name)}",
                hint=suggestion(name, DEVICE_TYPES),
                path=("partition", "device_type"),
            )


def _found(names: tuple[str, ...] | None, count: int) -> tuple[DeviceType, ...]:
    """Return what this machine has: its GPUs as far as the table knows them, or the CPU."""
    if not torch.cuda.is_available() or (names is not None and not any(name.startswith("cuda") for name in names)):
        return (DEVICE_TYPES["cpu"],) * count
    named = torch.cuda.get_device_name(0).lower().replace(" ", "").replace("-", "")
    likely = [
        device for device in DEVICE_TYPES.values() if device.kind == "cuda" and device.name.split("-")[0] in named
    ]
    return ((likely or [DEVICE_TYPES["a100-80gb"]])[-1],) * count


def _link(partition: PartitionSpec, usual: Link) -> Link:
    latency, bandwidth = partition.link_latency, partition.link_bandwidth
    return Link(
        latency_seconds=usual.latency_seconds if latency is None else latency,
        bytes_per_second=usual.bytes_per_second if bandwidth is None else bandwidth,
    )
