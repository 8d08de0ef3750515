"""Other uses of the devices of a specification: replicas, fewer stages, only the fastest of unlike devices, one alone; and which is to be chosen.

An update averages the same samples in all of them: with R times the replicas, each accumulates over an R-th of the micro-batches, or has fewer
samples in a micro-batch if there are not enough of these.

A use beats another one if it is at least as fast, as little late and as small on its fullest device, and better in one of these. Of those that are
about as fast as the fastest, the one whose gradients are least late is recommended: staleness costs accuracy, and how much no plan can say. Of several
that are equally late, one that needs clearly less memory is preferred to one that is faster by less than predictions are sure of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import gcd
from typing import Any, Literal

from attrs import evolve, frozen

from petra_graph.compiler.plan import Plan
from petra_graph.compiler.spec_checks import device_count
from petra_graph.errors import NoFeasiblePlan, SpecError, shown
from petra_graph.planning.spec_devices import planned_devices
from petra_graph.spec.model import MethodSpec, OptimizerSpec, RequestedScheduleName, Spec
from petra_graph.units import factor, memory, noun, plural

_KEEP_LITTLE: Sequence[tuple[str, RequestedScheduleName]] = (("petra", "1f1b"), ("reversible-backprop", "sequential"))
"""Methods that may fit where another does not."""
_PARTS = (2, 4, 8)
"""Times as many devices, and parts of a batch, that are tried where memory does not suffice."""
NOT_LOOKED_AT = (
    "not looked at: replicas of unlike devices, other batches, and replicas that cannot share the samples of an update"
)
_ALONE: Sequence[tuple[str, Literal["auto"] | None]] = (
    ("backprop", None),
    ("reversible-backprop", None),
    ("backprop", "auto"),
)
"""Methods, and what their nodes keep, for replicas that have the whole network on one device: no gradient is late."""
_IN_PIPELINES: Sequence[tuple[str, RequestedScheduleName]] = (("1f1b-flush", "1f1b"), ("petra", "1f1b"))
"""Methods and schedules for replicas of shorter pipelines: the synchronous one, and the one that keeps least."""
_ABOUT = 0.95
"""The share of the greatest throughput from which plans are about as fast; predictions are not surer than that."""
_FASTER = 1.05
"""The ratio of throughputs from which another use that is as late is worth a word."""
_ALIKE = 1.01
"""The ratio up to which two figures are the same."""
_CLEARLY_SMALLER = 0.9
"""The ratio of memory for which speed within `_ABOUT` is given up."""

PlanVariant = Callable[[Spec], Plan]
"""Plans another specification of the same network."""


@frozen
class Figures:
    """What plans are compared by."""

    samples_per_second: float
    staleness: float
    """In updates."""
    memory_peak: int
    """Bytes of the fullest device."""
    fits: bool | None = None
    """None: the memory of devices is not known."""

    @classmethod
    def of(cls, plan: Plan) -> Figures:
        return cls(plan.timing.samples_per_second, plan.staleness, plan.peak_bytes, plan.fits)

    @property
    def usable(self) -> bool:
        return bool(self.samples_per_second) and self.fits is not False

    def beats(self, other: Figures) -> bool:
        ratios = (
            self.samples_per_second / other.samples_per_second,
            (1 + other.staleness) / (1 + self.staleness),
            other.memory_peak / self.memory_peak,
        )
        return bool(min(ratios) >= 1 / _ALIKE and max(ratios) > _ALIKE)


def recommended(plans: Sequence[Figures | None]) -> int | None:
    """Return the number of the plan to choose; None if none fits."""
    usable = [one for one in plans if one is not None and one.usable]
    if not usable:
        return None
    fastest = max(one.samples_per_second for one in usable)
    candidates = [one for one in usable if one.samples_per_second >= _ABOUT * fastest]
    least = min(one.staleness for one in candidates)
    alike = [one for one in candidates if one.staleness == least]
    smallest = min(one.memory_peak for one in alike)

    def fastest_of(some: Iterable[Figures]) -> Figures:
        return max(some, key=lambda one: (one.samples_per_second, -one.memory_peak))

    best = fastest_of(alike)
    if smallest <= _CLEARLY_SMALLER * best.memory_peak:
        best = fastest_of(one for one in alike if one.memory_peak <= _ALIKE * smallest)
    return plans.index(best)


@frozen
class Baseline:
    """What speed-ups are over."""

    samples_per_second: float
    name: str


def baseline(spec: Spec, plan_variant: PlanVariant) -> Baseline | None:
    """Return plain backpropagation on the fastest of the devices that it fits on, else the synchronous pipeline; None if neither fits."""
    alone = [_alone(spec, places[0], "backprop") for places in _kinds(spec)]
    if plans := [plan for variant in alone if (plan := _tried(variant, plan_variant))]:
        best = max(plans, key=lambda plan: plan.timing.samples_per_second)
        return Baseline(best.timing.samples_per_second, f"plain backpropagation on one {best.devices[0].type}")
    flushed = with_method(spec, "1f1b-flush", "1f1b")
    for variant in (flushed, evolve(flushed, method=evolve(flushed.method, keep="auto"))):
        if plan := _tried(variant, plan_variant):
            name = "the synchronous pipeline 1f1b-flush, since no device holds the network"
            return Baseline(plan.timing.samples_per_second, name)
    return None


def other_uses(spec: Spec) -> Iterator[Spec]:
    """Yield the specification with its devices used otherwise, each with the methods that suit it."""
    partition, kinds = spec.partition, _kinds(spec)
    count = device_count(partition)
    if count * partition.replicas > 1:
        for name, _ in _ALONE[:2]:
            yield _alone(spec, kinds[0][0], name)
    if count > 1 and partition.stages != "auto":
        yield evolve(spec, partition=evolve(partition, stages="auto"))
    for used in range(1, len(kinds) + 1):
        some = _on(spec, sorted(place for places in kinds[:used] for place in places))
        if used == 1:
            yield from _replicated(some)
        if 1 < device_count(some.partition) < count:
            yield evolve(some, partition=evolve(some.partition, stages="auto"))


def _kinds(spec: Spec) -> list[list[int]]:
    """Return the places of devices that have the same type and limit, the fastest first."""
    found: dict[object, list[int]] = {}
    devices = planned_devices(spec.partition)
    rate = [device.type.flops_per_second(spec.precision.products) for device in devices]
    for place in sorted(range(len(devices)), key=lambda place: -rate[place]):
        found.setdefault((devices[place].type, devices[place].memory_bytes), []).append(place)
    return list(found.values())


def _on(spec: Spec, places: Sequence[int]) -> Spec:
    """Return the specification on some of its devices."""
    partition = spec.partition

    def some(given: Any) -> Any:
        if not isinstance(given, tuple):
            return given
        own = tuple(given[place] for place in places)
        return own[0] if len({*own}) == 1 else own

    devices = some(partition.devices) if isinstance(partition.devices, tuple) else len(places)
    return evolve(
        spec,
        partition=evolve(
            partition,
            devices=(devices,) if isinstance(devices, str) else devices,
            device_type=some(partition.device_type),
            memory=some(partition.memory),
        ),
    )


def _alone(spec: Spec, place: int, name: str) -> Spec:
    some = with_method(_on(spec, [place]), name, "sequential")
    accumulation = spec.method.accumulation * spec.partition.replicas
    return evolve(
        some,
        partition=evolve(some.partition, replicas=1, stages=1),
        method=evolve(some.method, accumulation=accumulation),
    )


def _replicated(spec: Spec) -> Iterator[Spec]:
    """Yield other numbers of replicas on alike devices, with as many samples in an update."""
    devices = device_count(spec.partition) * spec.partition.replicas
    windows = spec.method.accumulation * spec.partition.replicas
    for replicas in (number for number in range(2, devices + 1) if devices % number == 0):
        fewer, stages = gcd(windows, replicas), devices // replicas
        batch, left = divmod(spec.data.batch, replicas // fewer)
        if left:  # No update can average the same samples.
            continue
        variant = evolve(
            spec,
            partition=evolve(spec.partition, replicas=replicas, devices=stages, stages=stages),
            method=evolve(spec.method, accumulation=windows // fewer),
            data=evolve(spec.data, batch=batch),
        )
        if stages == 1:
            for name, keep in _ALONE:
                whole = with_method(variant, name, "sequential")
                yield evolve(whole, method=evolve(whole.method, keep=keep))
        elif replicas != spec.partition.replicas:
            for name, schedule in _IN_PIPELINES:
                yield with_method(variant, name, schedule)


def _tried(variant: Spec, plan_variant: PlanVariant) -> Plan | None:
    """Return the plan of a variant that fits."""
    try:
        plan = plan_variant(variant)
    except (NoFeasiblePlan, SpecError):
        return None
    return None if plan.fits is False else plan


def what_fits(given: Spec, plan_variant: PlanVariant) -> str:
    """Return what to set so that the devices' memory suffices, each of it verified by a plan; of a smaller batch and of more devices the least."""
    partition, batch, count = given.partition, given.data.batch, device_count(given.partition)
    alike = not any(isinstance(one, tuple) for one in (partition.devices, partition.device_type, partition.memory))
    more = (evolve(partition, devices=count * times, stages=count * times) for times in _PARTS * alike)
    ways: Sequence[Iterable[Spec]] = (
        [evolve(given, method=evolve(given.method, keep="auto"))] * (given.method.keep != "auto"),
        (with_method(given, *way) for way in _KEEP_LITTLE if way[0] != given.method.name),
        (evolve(given, data=evolve(given.data, batch=batch // by)) for by in _PARTS[: batch.bit_length() - 1]),
        (evolve(given, partition=own) for own in more),
    )
    tried, found = 0, list[str]()
    for way in ways:
        for variant in way:
            tried += 1
            if _tried(variant, plan_variant):
                found.append("; ".join(keys_to_set(given, variant)))
                break
    if found:
        return f"what fits, by a plan each: {', or '.join(found)}"
    return f"none of {plural(tried, 'change')} that were planned fits: what nodes keep, other methods, smaller batches, more devices"


def better_use(given: Spec, plan: Plan, plan_variant: PlanVariant) -> tuple[str, int]:
    """Return what to set so that the devices of a specification's plan are used better, as a sentence or "", and how many other uses were looked at."""
    tried = [(given, plan), *((spec, other) for spec in other_uses(given) if (other := _tried(spec, plan_variant)))]
    found = [Figures.of(one) for _, one in tried]
    best = recommended(found) or 0
    spec, row, own = tried[best][0], found[best], found[0]
    faster = row.samples_per_second >= _FASTER * own.samples_per_second
    if not (faster or row.memory_peak < _CLEARLY_SMALLER * own.memory_peak or row.staleness < own.staleness):
        return "", len(found) - 1
    late = f"{plural(row.staleness, 'update')} late" if row.staleness else "without staleness"
    speed = factor(row.samples_per_second / own.samples_per_second)
    return (
        f"{_described(spec)} would be {speed} as fast, {late}, in {memory(row.memory_peak)} a device: set {'; '.join(keys_to_set(given, spec))}"
    ), len(found) - 1


def _described(spec: Spec) -> str:
    """Return how a variant uses devices, for people."""
    replicas, method, count = spec.partition.replicas, spec.method.name, device_count(spec.partition)
    if replicas > 1:
        return f"{replicas} replicas of {'the whole network' if count == 1 else f'{count} devices'} with {method}"
    if count == 1:
        return f"one device alone with {method}"
    return f"{method} on {count} {noun(count, 'device')}, in as many stages as help"


def keys_to_set(spec: Spec, variant: Spec) -> list[str]:
    """Return what to set so that a specification is a variant of it, as in `partition.replicas = 8`."""
    keys = [
        *(("method", key) for key in ("name", "schedule", "keep", "accumulation")),
        *(("partition", key) for key in ("replicas", "stages", "devices", "device_type", "memory")),
        ("data", "batch"),
    ]
    found = []
    for table, key in keys:
        before, after = (getattr(getattr(one, table), key) for one in (spec, variant))
        if before != after:
            found.append(f"{table}.{key} = {shown(after)}" if after is not None else f"no {table}.{key}")
    return found


def with_method(spec: Spec, name: str, schedule: RequestedScheduleName) -> Spec:
    """Return a specification with another method and schedule, whose nodes keep what the method says."""
    method: MethodSpec = evolve(spec.method, name=name, schedule=schedule, keep=None, allow_stored=False)
    return evolve(spec, method=method, optimizer=clip_by_stage(spec.optimizer))


def clip_by_stage(table: OptimizerSpec) -> OptimizerSpec:
    """Return a table that clips by stage, which every method allows; one norm over all stages needs synchronous ones."""
    return table if table.clip is None else evolve(table, clip=evolve(table.clip, scope="stage"))
