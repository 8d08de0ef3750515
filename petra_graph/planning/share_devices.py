"""Other specifications of one network on the same devices: replicas, fewer stages, only the fastest of unlike devices, one alone; and what to set for each.

An update averages the same samples in all of them: with R times the replicas, each accumulates over an R-th of the micro-batches, or has fewer
samples in a micro-batch if there are not enough of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import gcd
from typing import Any, Literal

from attrs import evolve

from petra_graph.compiler.spec_checks import device_count
from petra_graph.errors import shown
from petra_graph.planning.spec_devices import planned_devices
from petra_graph.spec.model import OptimizerSpec, RequestedScheduleName, Spec

_PARTS = (2, 4, 8)
"""Times as many devices, and parts of a batch, that are tried where memory does not suffice."""
_ALONE: Sequence[tuple[str, Literal["auto"] | None]] = (
    ("backprop", None),
    ("reversible-backprop", None),
    ("backprop", "auto"),
)
"""Methods, and what their nodes keep, for replicas that have the whole network on one device: no gradient is late."""
_IN_PIPELINES: Sequence[tuple[str, RequestedScheduleName]] = (("1f1b-flush", "1f1b"), ("petra", "1f1b"))
"""Methods and schedules for replicas of shorter pipelines: the synchronous one, and the one that keeps least."""
_COMPARED = {
    "method": ("name", "schedule", "keep", "accumulation"),
    "partition": ("replicas", "stages", "devices", "device_type", "memory"),
    "data": ("batch",),
}
"""The keys in which the specifications differ, by table."""


def changed(spec: Spec, **tables: Mapping[str, Any]) -> Spec:
    """Return a specification with other values of some keys, by table."""
    return evolve(spec, **{table: evolve(getattr(spec, table), **keys) for table, keys in tables.items()})


def with_method(spec: Spec, name: str, schedule: RequestedScheduleName) -> Spec:
    """Return a specification with another method and schedule, whose nodes keep what the method says."""
    method = {"name": name, "schedule": schedule, "keep": None, "allow_stored": False}
    return evolve(changed(spec, method=method), optimizer=clip_by_stage(spec.optimizer))


def clip_by_stage(table: OptimizerSpec) -> OptimizerSpec:
    """Return a table that clips by stage, which every method allows; one norm over all stages needs synchronous ones."""
    return table if table.clip is None else evolve(table, clip=evolve(table.clip, scope="stage"))


def keys_to_set(spec: Spec, variant: Spec) -> list[str]:
    """Return what to set so that a specification is a variant of it, as in `partition.replicas = 8`."""
    found = []
    for table, key in ((table, key) for table, keys in _COMPARED.items() for key in keys):
        before, after = (getattr(getattr(one, table), key) for one in (spec, variant))
        if before != after:
            found.append(f"{table}.{key} = {shown(after)}" if after is not None else f"no {table}.{key}")
    return found


def other_uses(spec: Spec) -> Iterator[Spec]:
    """Yield the specification with its devices used otherwise, each with the methods that suit it."""
    kinds, count = _kinds(spec), device_count(spec.partition)
    if count * spec.partition.replicas > 1:
        for name, _ in _ALONE[:2]:
            yield _alone(spec, kinds[0][0], name)
    if count > 1 and spec.partition.stages != "auto":
        yield changed(spec, partition={"stages": "auto"})
    for used in range(1, len(kinds) + 1):
        some = _on(spec, sorted(place for places in kinds[:used] for place in places))
        if used == 1:
            yield from _replicated(some)
        if 1 < device_count(some.partition) < count:
            yield changed(some, partition={"stages": "auto"})


def alone(spec: Spec) -> list[Spec]:
    """Return plain backpropagation on one device of each kind."""
    return [_alone(spec, places[0], "backprop") for places in _kinds(spec)]


def synchronous(spec: Spec) -> list[Spec]:
    """Return the pipeline without delay, and the same with nodes that keep what memory allows."""
    flushed = with_method(spec, "1f1b-flush", "1f1b")
    return [flushed, changed(flushed, method={"keep": "auto"})]


def smaller(given: Spec) -> Sequence[Iterable[Spec]]:
    """Return ways to need less memory; of each the first that fits is the least change."""
    partition, batch, count = given.partition, given.data.batch, device_count(given.partition)
    alike = not any(isinstance(one, tuple) for one in (partition.devices, partition.device_type, partition.memory))
    keep_little: Sequence[tuple[str, RequestedScheduleName]]
    keep_little = ("petra", "1f1b"), ("reversible-backprop", "sequential")
    return (
        [changed(given, method={"keep": "auto"})] * (given.method.keep != "auto"),
        (with_method(given, *way) for way in keep_little if way[0] != given.method.name),
        (changed(given, data={"batch": batch // by}) for by in _PARTS[: batch.bit_length() - 1]),
        (changed(given, partition=dict.fromkeys(("devices", "stages"), count * times)) for times in _PARTS * alike),
    )


def _kinds(spec: Spec) -> list[list[int]]:
    """Return the places of devices that have the same type and limit, the fastest first."""
    found: dict[object, list[int]] = {}
    devices = planned_devices(spec.partition)
    rate = [device.type.flops_per_second(spec.precision.products) for device in devices]
    for place in sorted(range(len(devices)), key=lambda place: -rate[place]):
        found.setdefault((devices[place].type, devices[place].memory_bytes), []).append(place)
    return list(found.values())


def _on(spec: Spec, places: Sequence[int]) -> Spec:
    """Return the specification on some of its devices; where what is listed for them is one value, it is stated once."""
    partition = spec.partition
    keys: dict[str, Any] = {"devices": len(places)} if isinstance(partition.devices, int) else {}
    for key in ("devices", "device_type", "memory"):
        if isinstance(given := getattr(partition, key), tuple):
            own = tuple(given[place] for place in places)
            keys[key] = own if len({*own}) > 1 else own[:1] if key == "devices" else own[0]
    return changed(spec, partition=keys)


def _alone(spec: Spec, place: int, name: str) -> Spec:
    accumulation = spec.method.accumulation * spec.partition.replicas
    some = with_method(_on(spec, [place]), name, "sequential")
    return changed(some, partition={"replicas": 1, "stages": 1}, method={"accumulation": accumulation})


def _replicated(spec: Spec) -> Iterator[Spec]:
    """Yield other numbers of replicas on alike devices, with as many samples in an update."""
    devices = device_count(spec.partition) * spec.partition.replicas
    windows = spec.method.accumulation * spec.partition.replicas
    for replicas in (number for number in range(2, devices + 1) if devices % number == 0):
        fewer, stages = gcd(windows, replicas), devices // replicas
        batch, left = divmod(spec.data.batch, replicas // fewer)
        if left:  # No update can average the same samples.
            continue
        variant = changed(
            spec,
            partition={"replicas": replicas, "devices": stages, "stages": stages},
            method={"accumulation": windows // fewer},
            data={"batch": batch},
        )
        if stages == 1:
            for name, keep in _ALONE:
                yield changed(with_method(variant, name, "sequential"), method={"keep": keep})
        elif replicas != spec.partition.replicas:
            for name, schedule in _IN_PIPELINES:
                yield with_method(variant, name, schedule)
