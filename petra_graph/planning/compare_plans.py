"""Plans compared: one network under every training method and with other uses of its devices, which of them to choose; and given specs.

Of those that are about as fast as the fastest, the one whose gradients are least late is recommended: staleness costs accuracy, and how much no plan
can say. Of several that are equally late, one that needs clearly less memory is preferred to one that is faster by less than predictions are sure of.

Other uses of the devices are replicas, fewer stages, only the fastest of unlike devices, and one alone. An update averages the same samples in all of
them: with R times the replicas, each accumulates over an R-th of the micro-batches, or has fewer samples in a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import gcd
from typing import Any, Literal

from attrs import evolve

from petra_graph.compiler.plan import ComparedPlan, Comparison, Figures, Plan
from petra_graph.compiler.spec_checks import device_count
from petra_graph.errors import NoFeasiblePlan, SpecError, shown
from petra_graph.planning.place_network import planned_devices
from petra_graph.planning.plan_spec import Estimate, Planner, described_plan
from petra_graph.program.method import METHODS, is_synchronous
from petra_graph.program.schedule import schedule_text
from petra_graph.spec.model import OptimizerSpec, RequestedScheduleName, Spec
from petra_graph.units import factor, memory, plural

_NOT_LOOKED_AT = (
    "not looked at: replicas of unlike devices, other batches, and replicas that cannot share the samples of an update"
)
_ABOUT = 0.95
"""The share of the greatest throughput from which plans are about as fast; predictions are not surer than that."""
_FASTER = 1.05
"""The ratio of throughputs from which another use that is as late is worth a word."""
_ALIKE = 1.01
"""The ratio up to which two figures are the same."""
_CLEARLY_SMALLER = 0.9
"""The ratio of memory for which speed within `_ABOUT` is given up."""
_PARTS = (2, 4, 8)
"""Times as many devices, and parts of a batch, that are tried where memory does not suffice."""
_COMPARED = {
    "method": ("name", "schedule", "keep", "accumulation"),
    "partition": ("replicas", "stages", "devices", "device_type", "memory"),
    "data": ("batch",),
}
"""The keys in which the specifications differ, by table."""

Tried = Estimate | NoFeasiblePlan | SpecError
"""What became of a specification."""


def recommended(plans: Sequence[Figures | None]) -> int | None:
    """Return the number of the plan to choose; None if none fits."""
    usable = [one for one in plans if one is not None]
    if not usable:
        return None

    def speed(one: Figures) -> tuple[float, int]:
        return one.samples_per_second, -one.memory_peak

    enough = _ABOUT * max(usable, key=speed).samples_per_second
    fast = [one for one in usable if one.samples_per_second >= enough]
    alike = [one for one in fast if one.staleness == min(other.staleness for other in fast)]
    best, smallest = max(alike, key=speed), min(one.memory_peak for one in alike)
    if smallest <= _CLEARLY_SMALLER * best.memory_peak:
        best = max((one for one in alike if one.memory_peak <= _ALIKE * smallest), key=speed)
    return plans.index(best)


def advised(planner: Planner, *, with_timeline: bool = False) -> Plan:
    """Return a plan with its speed-up, and with a better use of the same devices as its first warning; NoFeasiblePlan: with what would fit."""
    given = planner.spec
    try:
        own = planner.estimate()
    except NoFeasiblePlan as error:
        hint = _what_fits(planner)
        raise NoFeasiblePlan(evolve(problem, hint=hint) for problem in error.problems) from None
    plan = described_plan(own, with_timeline=with_timeline)
    over, name = _baseline(planner)
    if over is not None:
        plan = evolve(plan, timing=evolve(plan.timing, speedup=own.samples_per_second / over, speedup_over=name))

    tried = [own, *_fitting(planner, other_uses(given))]
    best = recommended([one.figures for one in tried]) or 0
    found, first, better = tried[best].figures, own.figures, list[str]()
    times = found.samples_per_second / first.samples_per_second if first.samples_per_second else 1.0
    smaller = found.memory_peak < _CLEARLY_SMALLER * first.memory_peak
    if times >= _FASTER or smaller or found.staleness < first.staleness:
        late = f"{plural(found.staleness, 'update')} late" if found.staleness else "without staleness"
        keys = "; ".join(keys_to_set(given, tried[best].network.spec))
        better.append(f"set {keys}: {factor(times)} as fast, {late}, in {memory(found.memory_peak)} a device")
    not_looked_at = f"{_NOT_LOOKED_AT}; nor other methods on these devices, which plan --compare looks at"
    return evolve(plan, assumptions=(not_looked_at,), warnings=(*better, *plan.warnings))


def compare_methods(planner: Planner) -> Comparison:
    """Return the memory, staleness and speed of every method on the specification's network, and of other uses of its devices.

    A method that a run would refuse has a row with the reason. Errors are those of `Planner.plan`, and SpecError where every method is refused.
    """
    given = planner.spec
    variants = [
        _with_method(given, method.name, schedule)
        for method in METHODS.values()
        for schedule in method.schedules
        if schedule != "sequential" or method.schedules == ("sequential",)
    ]
    flushed, filled = _synchronous(given)
    if given.method.keep is not None:
        variants.append(evolve(flushed, method=given.method))
    # Where depths or what nodes keep turn out to be those of a row before, the row would say the same.
    tried: dict[object, tuple[Spec, Tried]] = {}
    for spec in [*variants, filled, *other_uses(given)]:
        one = _try(planner, spec)
        same = (spec.method.name, spec.partition.replicas, one.figures) if isinstance(one, Estimate) else one
        tried.setdefault(same, (spec, one))
    assumed = _assumptions([one for _, one in tried.values()])
    over, name = _baseline(planner)
    rows = tuple(_row(given, spec, one, over) for spec, one in tried.values())
    best = recommended([row.figures for row in rows])
    assumed = (*assumed, _NOT_LOOKED_AT)
    return Comparison(name=given.name, rows=rows, recommended=best, speedup_over=name, assumptions=assumed)


def compare_specs(planners: Mapping[str, Callable[[], Planner]]) -> Comparison:
    """Return the memory, staleness and speed of several specifications; one that is refused has a row with the reason, unless all are."""
    rows, tried, first = list[ComparedPlan](), list[Tried](), None
    over: tuple[float | None, str] = None, "nothing: no plan fits"
    for name, make in planners.items():
        try:
            planner = make()
            tried.append(planner.estimate())
        except (NoFeasiblePlan, SpecError) as error:
            tried.append(error)
            rows.append(_refused(ComparedPlan(name=name), error))
            continue
        if first is None:
            first, over = planner, _baseline(planner)
        rows.append(evolve(_row(planner.spec, planner.spec, tried[-1], over[0]), name=name))
    return Comparison(
        name="plans" if first is None else first.spec.name,
        rows=tuple(rows),
        speedup_over=f"{over[1]}, by the first plan",
        assumptions=_assumptions(tried),
    )


def _what_fits(planner: Planner) -> str:
    """Return what to set so that the devices' memory suffices, each of it verified by an estimate."""
    given = planner.spec
    partition, batch, count = given.partition, given.data.batch, device_count(given.partition)
    alike = not any(isinstance(one, tuple) for one in (partition.devices, partition.device_type, partition.memory))
    keep_little: Sequence[tuple[str, RequestedScheduleName]]
    keep_little = ("petra", "1f1b"), ("reversible-backprop", "sequential")
    ways = (  # of each the first that fits is the least change
        [changed(given, method={"keep": "auto"})] * (given.method.keep != "auto"),
        [_with_method(given, *way) for way in keep_little if way[0] != given.method.name],
        [changed(given, data={"batch": batch // by}) for by in _PARTS[: batch.bit_length() - 1]],
        [changed(given, partition=dict.fromkeys(("devices", "stages"), count * times)) for times in _PARTS * alike],
    )
    fits = [one for way in ways for one in islice(_fitting(planner, way), 1)]
    if fits:
        return f"what fits, by a plan each: {', or '.join('; '.join(keys_to_set(given, one.network.spec)) for one in fits)}"
    tried = plural(sum(map(len, ways)), "change")
    return f"none of {tried} that were planned fits: what nodes keep, other methods, smaller batches, more devices"


def _try(planner: Planner, spec: Spec) -> Tried:
    try:
        return planner.estimate(spec)
    except (NoFeasiblePlan, SpecError) as error:
        return error


def _fitting(planner: Planner, specs: Iterable[Spec]) -> Iterator[Estimate]:
    return (one for spec in specs if isinstance(one := _try(planner, spec), Estimate))


def _baseline(planner: Planner) -> tuple[float | None, str]:
    """Return the throughput that speed-ups are over, and its name: plain backpropagation on the fastest device that holds it, else a synchronous pipeline."""
    alone = (_alone(planner.spec, places[0], "backprop") for places in _kinds(planner.spec))
    if best := max(_fitting(planner, alone), key=lambda one: one.samples_per_second, default=None):
        return best.samples_per_second, f"plain backpropagation on one {best.inputs.devices[0].type.name}"
    if best := next(_fitting(planner, _synchronous(planner.spec)), None):
        return best.samples_per_second, "the synchronous pipeline 1f1b-flush, since no device holds the network"
    return None, "nothing: not even a synchronous pipeline fits"


def _assumptions(tried: Sequence[Tried]) -> tuple[str, ...]:
    """Return how sure several plans are; raise the first SpecError where every specification is wrong."""
    refused = [one for one in tried if isinstance(one, SpecError)]
    if len(refused) == len(tried):
        raise refused[0]
    return tuple(dict.fromkeys(f"times are {one.certainty}" for one in tried if isinstance(one, Estimate)))


def _row(given: Spec, spec: Spec, found: Tried, over: float | None) -> ComparedPlan:
    """Return the row of an estimate, with the memory of all replicas, or of the error."""
    method, partition = spec.method, spec.partition
    row = ComparedPlan(
        set=tuple(keys_to_set(given, spec)),
        method=method.name,
        schedule=METHODS[method.name].schedule if method.schedule is None else method.schedule,
        keep=method.keep,
        replicas=partition.replicas,
        devices=device_count(partition),
    )
    if not isinstance(found, Estimate):
        return _refused(row, found)
    notes = [] if found.tick.exact else ["about: no period was found, and times are means over a long simulation"]
    if method.schedule == "auto":
        notes.append(schedule_text(found.placement.schedule))
    # Where it is known of every device how much it may hold, a plan's hold no more.
    hosts = [device for device in found.inputs.devices if device.name in found.peaks]
    return evolve(
        row,
        memory_peak=found.figures.memory_peak,
        memory_total=round(sum(found.peaks.values()) * partition.replicas / given.partition.replicas),
        fits=all(device.memory_bytes or device.type.memory_bytes for device in hosts) or None,
        staleness=found.figures.staleness,
        samples_per_second=found.samples_per_second,
        speedup=found.samples_per_second / over if over else None,
        note="; ".join(notes),
    )


def _refused(row: ComparedPlan, error: NoFeasiblePlan | SpecError) -> ComparedPlan:
    reason = "; ".join(problem.message for problem in error.problems)
    if isinstance(error, NoFeasiblePlan):
        return evolve(row, fits=False, note=reason)
    return evolve(row, note=f"a run would be refused: {reason}")


# --- other specifications of the network ---


def changed(spec: Spec, **tables: Mapping[str, Any]) -> Spec:
    """Return a specification with other values of some keys, by table."""
    return evolve(spec, **{table: evolve(getattr(spec, table), **keys) for table, keys in tables.items()})


def clip_by_stage(table: OptimizerSpec) -> OptimizerSpec:
    """Return a table that clips by stage, which every method allows; one norm over all stages needs a synchronous one without replicas."""
    return table if table.clip is None else evolve(table, clip=evolve(table.clip, scope="stage"))


def _with_method(spec: Spec, name: str, schedule: RequestedScheduleName) -> Spec:
    """Return a specification with another method and schedule, whose nodes keep what the method says."""
    found = changed(spec, method={"name": name, "schedule": schedule, "keep": None, "allow_stored": False})
    has_global_norm = is_synchronous(schedule, METHODS[name].flush) and spec.partition.replicas == 1
    return found if has_global_norm else evolve(found, optimizer=clip_by_stage(spec.optimizer))


def _synchronous(spec: Spec) -> tuple[Spec, Spec]:
    """Return the pipeline without delay, and the same with nodes that keep what memory allows."""
    flushed = _with_method(spec, "1f1b-flush", "1f1b")
    return flushed, changed(flushed, method={"keep": "auto"})


def keys_to_set(spec: Spec, variant: Spec) -> list[str]:
    """Return what to set so that a specification is a variant of it, as in `partition.replicas = 8`."""
    found = []
    for table, key in ((table, key) for table, keys in _COMPARED.items() for key in keys):
        before, after = (getattr(getattr(one, table), key) for one in (spec, variant))
        if before != after:
            found.append(f"{table}.{key} = {shown(after)}" if after is not None else f"no {table}.{key}")
    if variant.optimizer.clip != spec.optimizer.clip:
        found.append('optimizer.clip.scope = "stage"')
    return found


def other_uses(spec: Spec) -> Iterator[Spec]:
    """Yield the specification with its devices used otherwise, each with the methods that suit it."""
    kinds, count = _kinds(spec), device_count(spec.partition)
    if count * spec.partition.replicas > 1:
        for name in ("backprop", "reversible-backprop"):
            yield _alone(spec, kinds[0][0], name)
    if count > 1 and spec.partition.stages != "auto":
        yield changed(spec, partition={"stages": "auto"})
    for used in range(1, len(kinds) + 1):
        some = _on(spec, sorted(place for places in kinds[:used] for place in places))
        if used == 1:
            yield from _replicated(some)
        if 1 < device_count(some.partition) < count:
            yield changed(some, partition={"stages": "auto"})


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
    """Return a method without delay on one device."""
    accumulation = spec.method.accumulation * spec.partition.replicas
    some = changed(_on(spec, [place]), partition={"replicas": 1, "stages": 1}, method={"accumulation": accumulation})
    return _with_method(some, name, "sequential")


def _replicated(spec: Spec) -> Iterator[Spec]:
    """Yield other numbers of replicas on alike devices, with as many samples in an update.

    Replicas of the whole network need no delay. Those of shorter pipelines have the synchronous method, and the one that keeps least.
    """
    devices = device_count(spec.partition) * spec.partition.replicas
    windows = spec.method.accumulation * spec.partition.replicas
    alone: tuple[tuple[str, Literal["auto"] | None], ...]
    alone = ("backprop", None), ("reversible-backprop", None), ("backprop", "auto")
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
            for name, keep in alone:
                yield changed(_with_method(variant, name, "sequential"), method={"keep": keep})
        elif replicas != spec.partition.replicas:
            for name in ("1f1b-flush", "petra"):
                yield _with_method(variant, name, "1f1b")
