"""Plans compared: one network under every training method and with other uses of its devices, which of them to choose; and given specs.

Of those that are about as fast as the fastest, the one whose gradients are least late is recommended: staleness costs accuracy, and how much no plan
can say. Of several that are equally late, one that needs clearly less memory is preferred to one that is faster by less than predictions are sure of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from attrs import evolve

from petra_graph.compiler.plan import ComparedPlan, Comparison, Figures, Plan
from petra_graph.compiler.planner_inputs import stage_flops
from petra_graph.compiler.spec_checks import device_count
from petra_graph.errors import NoFeasiblePlan, SpecError
from petra_graph.planning.plan_spec import Estimate, Planner, described_plan, paper_accounting
from petra_graph.planning.share_devices import alone, keys_to_set, other_uses, smaller, synchronous, with_method
from petra_graph.program.method import METHODS
from petra_graph.program.schedule import schedule_text
from petra_graph.spec.model import Spec
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

Tried: TypeAlias = Estimate | NoFeasiblePlan | SpecError
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
    """Return a specification's plan with its speed-up, and with a better use of the same devices as its first warning.

    Raises:
        SpecError, PluginError, NoFeasiblePlan: as `Planner.plan`; where memory does not suffice, with what would fit.
    """
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

    tried = [own, *(one for spec in other_uses(given) if (one := _fitting(planner, spec)) is not None)]
    best = recommended([one.figures for one in tried]) or 0
    found, first, better = tried[best].figures, own.figures, list[str]()
    times = found.samples_per_second / first.samples_per_second if first.samples_per_second else 1.0
    if (
        times >= _FASTER
        or found.memory_peak < _CLEARLY_SMALLER * first.memory_peak
        or found.staleness < first.staleness
    ):
        late = f"{plural(found.staleness, 'update')} late" if found.staleness else "without staleness"
        keys = "; ".join(keys_to_set(given, tried[best].network.spec))
        better.append(f"set {keys}: {factor(times)} as fast, {late}, in {memory(found.memory_peak)} a device")
    not_looked_at = f"{_NOT_LOOKED_AT}; nor other methods on these devices, which plan --compare looks at"
    return evolve(plan, assumptions=(*plan.assumptions, not_looked_at), warnings=(*better, *plan.warnings))


def _what_fits(planner: Planner) -> str:
    """Return what to set so that the devices' memory suffices, each of it verified by an estimate."""
    tried, found = 0, list[str]()
    for way in smaller(planner.spec):
        for spec in way:
            tried += 1
            if _fitting(planner, spec):
                found.append("; ".join(keys_to_set(planner.spec, spec)))
                break
    if found:
        return f"what fits, by a plan each: {', or '.join(found)}"
    return f"none of {plural(tried, 'change')} that were planned fits: what nodes keep, other methods, smaller batches, more devices"


def _try(planner: Planner, spec: Spec) -> Tried:
    try:
        return planner.estimate(spec)
    except (NoFeasiblePlan, SpecError) as error:
        return error


def _fitting(planner: Planner, spec: Spec) -> Estimate | None:
    tried = _try(planner, spec)
    return tried if isinstance(tried, Estimate) else None


def _baseline(planner: Planner) -> tuple[float | None, str]:
    """Return the samples a second that speed-ups are over, and whose they are.

    It is plain backpropagation on the fastest of the devices that it fits on, else the synchronous pipeline; None if neither fits.
    """
    if found := [one for spec in alone(planner.spec) if (one := _fitting(planner, spec))]:
        best = max(found, key=lambda one: one.samples_per_second)
        return best.samples_per_second, f"plain backpropagation on one {best.inputs.devices[0].type.name}"
    for one in filter(None, (_fitting(planner, spec) for spec in synchronous(planner.spec))):
        return one.samples_per_second, "the synchronous pipeline 1f1b-flush, since no device holds the network"
    return None, "nothing: not even a synchronous pipeline fits"


def compare_methods(planner: Planner) -> Comparison:
    """Return the memory, staleness and speed of every method on the specification's network, each placed for itself.

    Other uses of the devices follow, which average the same samples in an update (`planning.share_devices`). A method that a run of the
    specification would refuse has a row with the reason.

    Raises:
        SpecError, PluginError: as `Planner.plan`; SpecError where every method is refused.
    """
    given = planner.spec
    variants = [
        with_method(given, method.name, schedule)
        for method in METHODS.values()
        for schedule in method.schedules
        if schedule != "sequential" or method.schedules == ("sequential",)
    ]
    flushed, filled = synchronous(given)
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
    return Comparison(
        name=given.name,
        rows=rows,
        recommended=recommended([row.figures for row in rows]),
        speedup_over=name,
        assumptions=(*assumed, _NOT_LOOKED_AT),
    )


def compare_specs(planners: Mapping[str, Callable[[], Planner]]) -> Comparison:
    """Return the memory, staleness and speed of several specifications; one that is refused has a row with the reason.

    Args:
        planners: what makes the planner of each specification, by the name of its row.

    Raises:
        SpecError: every specification is wrong.
        PluginError: as of `Planner`.
    """
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


def _assumptions(tried: Sequence[Tried]) -> tuple[str, ...]:
    """Return the assumptions of several plans, each sentence once; raise the first SpecError where every specification is wrong."""
    refused = [one for one in tried if isinstance(one, SpecError)]
    if len(refused) == len(tried):
        raise refused[0]
    return tuple(dict.fromkeys(text for one in tried if isinstance(one, Estimate) for text in one.assumptions))


def _row(given: Spec, spec: Spec, found: Tried, over: float | None) -> ComparedPlan:
    """Return the row of an estimate, or of the error, with the memory of all replicas, and with the work and the messages of as many samples as the given specification's."""
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
    inputs, programs = found.inputs, found.programs
    replicas, samples = partition.replicas / given.partition.replicas, given.data.batch / spec.data.batch
    in_paper = "lockstep" in METHODS[method.name].schedules and method.keep is None and replicas == samples == 1
    notes = [] if found.tick.exact else ["about: no period was found, and times are means over a long simulation"]
    if method.schedule == "auto":
        notes.append(schedule_text(found.placement.schedule))
    sent = {channel.key: channel.training.payload_bytes for program in programs for channel in program.channels}
    work = [stage_flops(program, inputs.costs) for program in programs]
    # Where it is known of every device how much it may hold, a plan's hold no more.
    hosts = [device for device in inputs.devices if device.name in found.peaks]
    return evolve(
        row,
        stages=len(programs),
        memory_peak=found.figures.memory_peak,
        memory_total=round(sum(found.peaks.values()) * replicas),
        paper_total=paper_accounting(programs, inputs.costs)["total"] if in_paper else None,
        channel_bytes=round(samples * sum(sent.values())),
        flops=round(samples * sum(one.forward + one.backward for one in work)),
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
