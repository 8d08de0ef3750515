"""Plans compared: `plan --compare`, one network under every training method, each placed for itself, and other uses of its devices; and given specs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from attrs import evolve, frozen

from petra_graph.compiler.plan import ComparedPlan, Comparison, Plan
from petra_graph.compiler.spec_checks import device_count
from petra_graph.errors import NoFeasiblePlan, SpecError
from petra_graph.planning.plan_spec import Planner
from petra_graph.planning.share_devices import (
    NOT_LOOKED_AT,
    Baseline,
    Figures,
    PlanVariant,
    baseline,
    keys_to_set,
    other_uses,
    recommended,
    with_method,
)
from petra_graph.program.method import METHODS
from petra_graph.program.schedule import schedule_text
from petra_graph.spec.model import Spec
from petra_graph.units import memory

_BASE = ("pipedream", "lockstep", None)
"""The paper's first row (table 3), which savings are relative to."""


_NOTHING = "nothing: not even a synchronous pipeline fits"


@frozen
class _Tried:
    """A specification with its plan, or with the reason why it has none."""

    spec: Spec
    plan: Plan | None
    error: NoFeasiblePlan | SpecError | None

    @classmethod
    def of(cls, spec: Spec, plan_variant: PlanVariant) -> _Tried:
        try:
            return cls(spec, plan_variant(spec), None)
        except (NoFeasiblePlan, SpecError) as error:
            return cls(spec, None, error)

    @property
    def figures(self) -> Figures | None:
        return None if self.plan is None else Figures.of(self.plan)

    def same_as(self, other: _Tried) -> bool:
        """Whether depths, or what nodes keep, were found to be those of another one."""
        own, others = ((one.spec.method.name, one.spec.partition.replicas, one.figures) for one in (self, other))
        return self.plan is not None and own == others


def compare_methods(planner: Planner) -> Comparison:
    """Return the memory, staleness and speed of every method on the specification's network, each placed for itself.

    Other uses of the devices follow, which average the same samples in an update (`planning.share_devices`). A method that a run of the
    specification would refuse has a row with the reason.

    Raises:
        SpecError, PluginError: as `Planner.plan`; SpecError where every method is refused.
    """
    given, plan_variant = planner.spec, planner.plan_once()
    variants = [
        with_method(given, method.name, schedule)
        for method in METHODS.values()
        for schedule in method.schedules
        if schedule != "sequential" or method.schedules == ("sequential",)
    ]
    flushed = with_method(given, "1f1b-flush", "1f1b")
    if given.method.keep is not None:
        variants.append(evolve(flushed, method=given.method))
    variants += [evolve(flushed, method=evolve(flushed.method, keep="auto")), *other_uses(given)]
    tried, refused = list[_Tried](), list[Exception]()
    for spec in variants:
        one = _Tried.of(spec, plan_variant)
        refused += [one.error] if isinstance(one.error, SpecError) else []
        if not any(one.same_as(other) for other in tried):
            tried.append(one)
    if len(refused) == len(tried):
        raise refused[0]

    over, figures = baseline(given, plan_variant), [one.figures for one in tried]
    rows = [_row(given, one.spec, one.plan, one.error, over) for one in tried]
    base = next(row for row in rows if (row.method, row.schedule, row.keep) == _BASE)
    usable = [one for one in figures if one is not None and one.usable]
    return Comparison(
        name=given.name,
        micro_batch=given.data.batch,
        rows=tuple(
            evolve(
                row,
                saving=_saving(row.memory_total, base.memory_total),
                paper_saving=_saving(row.paper_total, base.paper_total),
                unbeaten=own in usable and not any(own is not None and other.beats(own) for other in usable),
            )
            for row, own in zip(rows, figures, strict=True)
        ),
        recommended=recommended(figures),
        speedup_over=over.name if over else _NOTHING,
        assumptions=(*_said([one.plan for one in tried]), NOT_LOOKED_AT),
    )


def compare_specs(planners: Mapping[str, Callable[[], Planner]]) -> Comparison:
    """Return the memory, staleness and speed of several specifications; one that is refused has a row with the reason.

    Args:
        planners: what makes the planner of each specification, by the name of its row.

    Raises:
        SpecError: every specification is wrong.
        PluginError: as of `Planner`.
    """
    rows, plans, errors = list[ComparedPlan](), list[Plan](), list[Exception]()
    over: Baseline | None = None
    for name, make in planners.items():
        try:
            planner = make()
            plan = planner.plan()
        except (NoFeasiblePlan, SpecError) as error:
            errors.append(error)
            rows.append(evolve(_refused(error), name=name))
            continue
        if not plans:
            over = baseline(planner.spec, planner.plan)
        plans.append(plan)
        rows.append(evolve(_row(planner.spec, planner.spec, plan, None, over), name=name))
    if len(errors) == len(rows) and all(isinstance(error, SpecError) for error in errors):
        raise errors[0]
    return Comparison(
        name=plans[0].name if plans else "plans",
        rows=tuple(rows),
        speedup_over=f"{over.name}, by the first plan" if over else _NOTHING,
        assumptions=_said(plans),
    )


def _row(
    given: Spec, spec: Spec, plan: Plan | None, error: NoFeasiblePlan | SpecError | None, over: Baseline | None
) -> ComparedPlan:
    """Return the row of a plan, or of the error, with the memory of all replicas, and with the work and the messages of as many samples as the given specification's."""
    method, partition = spec.method, spec.partition
    row = evolve(
        ComparedPlan() if error is None else _refused(error),
        set=tuple(keys_to_set(given, spec)),
        method=method.name,
        schedule=METHODS[method.name].schedule if method.schedule is None else method.schedule,
        keep=method.keep,
        replicas=partition.replicas,
        devices=device_count(partition),
        accumulation=method.accumulation,
        micro_batch=spec.data.batch,
    )
    if plan is None:
        return row
    replicas, samples = partition.replicas / given.partition.replicas, given.data.batch / spec.data.batch
    in_paper = "lockstep" in METHODS[method.name].schedules and method.keep is None and replicas == samples == 1
    notes = [] if plan.timing.exact else ["about: no period was found, and times are means over a long simulation"]
    worst = min(plan.devices, key=lambda device: device.spare_bytes or 0)
    if (short := -(worst.spare_bytes or 0)) > 0:
        notes.append(f"does not fit: {worst.name} needs {memory(short)} more than its {memory(worst.room or 0)}")
    if method.schedule == "auto":
        notes.append(schedule_text(plan.schedule))
    return evolve(
        row,
        stages=len(plan.stages),
        memory_peak=plan.peak_bytes,
        memory_total=round(plan.totals.bytes.total * replicas),
        paper_total=plan.paper_accounting["total"] if in_paper else None,
        channel_bytes=round(
            samples * sum(one.channel_bytes.forward + one.channel_bytes.backward for one in plan.stages)
        ),
        flops=round(samples * sum(one.flops.forward + one.flops.backward for one in plan.stages)),
        fits=plan.fits,
        staleness=plan.staleness,
        samples_per_second=plan.timing.samples_per_second,
        seconds_per_micro_batch=plan.timing.tick_seconds,
        exact=plan.timing.exact,
        speedup=plan.timing.samples_per_second / over.samples_per_second if over else None,
        note="; ".join(notes),
    )


def _refused(error: NoFeasiblePlan | SpecError) -> ComparedPlan:
    no_room = isinstance(error, NoFeasiblePlan)
    reason = "; ".join(problem.message for problem in error.problems)
    return ComparedPlan(
        fits=False if no_room else None, note=reason if no_room else f"a run would be refused: {reason}"
    )


def _saving(total: int | None, base: int | None) -> float | None:
    return None if total is None or base is None else 1 - total / base


def _said(plans: Iterable[Plan | None]) -> tuple[str, ...]:
    """Return the assumptions of several plans, each sentence once."""
    return tuple(dict.fromkeys(text for plan in plans if plan is not None for text in plan.assumptions))
