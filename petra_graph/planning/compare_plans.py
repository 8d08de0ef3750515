"""Plans compared: `plan --compare`, one network under every training method, each placed for itself, and other uses of its devices; and given specs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from attrs import evolve

from petra_graph.compiler.plan import Document, Plan
from petra_graph.compiler.spec_checks import device_count
from petra_graph.errors import NoFeasiblePlan, SpecError
from petra_graph.planning.plan_spec import Planner
from petra_graph.planning.share_devices import (
    NOT_LOOKED_AT,
    Baseline,
    baseline,
    clip_by_stage,
    figures,
    keys_to_set,
    other_uses,
    recommend,
    replace_method,
)
from petra_graph.program.method import METHODS
from petra_graph.program.schedule import schedule_text
from petra_graph.spec.model import MethodSpec, Spec
from petra_graph.units import memory

_BASE = ("pipedream", "lockstep", None)
"""The paper's first row (table 3), which savings are relative to."""
_FIGURES = ("memory_total", "memory_peak", "fits", "staleness", "samples_per_second", "exact")
_OF_METHODS = ("paper_total", "channel_bytes", "flops", "seconds_per_micro_batch")
"""Figures of rows; None where there is no feasible plan."""


def compare_methods(planner: Planner) -> Document:
    """Return the memory, staleness and speed of every method on the specification's network, each placed for itself.

    Other uses of the devices follow, which average the same samples in an update (`planning.share_devices`). A row
    that no other one beats is `unbeaten`, and one of these is `recommended`. A method that a run of the specification would refuse
    has a row with the reason.

    Raises:
        SpecError, PluginError: as `Planner.plan`; SpecError where every method is refused.
    """
    given, plans = planner.spec, list[Plan]()
    optimizer = clip_by_stage(given.optimizer)

    def row_of(spec: Spec) -> dict[str, Any]:
        made, plan, error = _try_plan(lambda: planner.plan(spec))
        if plan is not None:
            plans.append(plan)
            if spec.method.schedule == "auto":
                made["note"] = "; ".join(filter(None, [made["note"], schedule_text(plan.schedule)]))
        return {**_described(given, spec), **_figures_of_method(plan, spec.method), **made, "error": error}

    rows, refused = list[dict[str, Any]](), list[Exception]()
    flushed = evolve(replace_method(given.method, "1f1b-flush", "1f1b"), keep="auto")
    methods = (evolve(given, method=method, optimizer=optimizer) for method in (*_methods(given.method), flushed))
    for variant in (*methods, *other_uses(given)):
        row = _for_the_samples_of(given, row_of(variant))
        error = row.pop("error")
        refused += [error] if isinstance(error, SpecError) else []
        if not any(_says_the_same(row, other) for other in rows):
            rows.append(row)
    if len(refused) == len(rows):
        raise refused[0]
    over = baseline(given, planner.plan)
    base = next(row for row in rows if (row["method"], row["schedule"], row["keep"]) == _BASE)
    for row in rows:
        speed = row["samples_per_second"]
        row["speedup"] = speed / over.samples_per_second if speed is not None and over else None
        for saving, total in (("saving", "memory_total"), ("paper_saving", "paper_total")):
            known = row[total] is not None and base[total] is not None
            row[saving] = 1 - row[total] / base[total] if known else None
    return {
        "name": given.name,
        "micro_batch": given.data.batch,
        "rows": rows,
        "recommended": recommend(rows),
        "speedup_over": over.name if over else "nothing: not even a synchronous pipeline fits",
        "assumptions": [*_said(plans), NOT_LOOKED_AT],
    }


def compare_specs(planners: Mapping[str, Callable[[], Planner]]) -> Document:
    """Return the memory, staleness and speed of several specifications; one that is refused has a row with the reason.

    Args:
        planners: what makes the planner of each specification, by the name of its row.

    Raises:
        SpecError: every specification is wrong.
        PluginError: as of `Planner`.
    """
    rows, plans, errors = list[dict[str, Any]](), list[Plan](), list[Exception | None]()
    over: Baseline | None = None
    for name, make in planners.items():
        made, plan, error = _try_plan(partial(_plan_of, make))
        errors.append(error)
        if plan is not None:
            first = None if plans else make()
            over = over if first is None else baseline(first.spec, first.plan)
            plans.append(plan)
        speed = made["samples_per_second"]
        speedup = speed / over.samples_per_second if speed is not None and over else None
        stages = None if plan is None else len(plan.stages)
        rows.append({"name": name, "stages": stages, **made, "speedup": speedup, "refused": plan is None})
    if all(isinstance(error, SpecError) for error in errors) and errors[0] is not None:
        raise errors[0]
    return {
        "name": plans[0].name if plans else "plans",
        "rows": rows,
        "speedup_over": f"{over.name}, by the first plan" if over else "nothing: not even a synchronous pipeline fits",
        "assumptions": _said(plans),
    }


def _plan_of(make: Callable[[], Planner]) -> Plan:
    return make().plan()


def _try_plan(make: Callable[[], Plan]) -> tuple[dict[str, Any], Plan | None, NoFeasiblePlan | SpecError | None]:
    """Return the figures and the note of a row, with the plan, or the error that says why it cannot be planned."""
    try:
        plan = make()
    except (NoFeasiblePlan, SpecError) as error:
        fits = False if isinstance(error, NoFeasiblePlan) else None
        refused = "" if isinstance(error, NoFeasiblePlan) else "a run would be refused: "
        note = refused + "; ".join(problem.message for problem in error.problems)
        return {**dict.fromkeys(_FIGURES), "fits": fits, "note": note}, None, error
    return {**figures(plan), "note": _note(plan)}, plan, None


def _note(plan: Plan) -> str:
    notes = [] if plan.timing.exact else ["about: no period was found, and times are means over a long simulation"]
    short = {device.name: device.spare_bytes or 0 for device in plan.devices}
    worst = min(plan.devices, key=lambda device: short[device.name])
    if short[worst.name] < 0:
        notes.append(
            f"does not fit: {worst.name} needs {memory(-short[worst.name])} more than its {memory(worst.room or 0)}"
        )
    return "; ".join(notes)


def _described(given: Spec, spec: Spec) -> dict[str, Any]:
    method, partition = spec.method, spec.partition
    return {
        "set": keys_to_set(given, spec),
        "schedule": method.schedule,
        "keep": method.keep,
        "method": method.name,
        "replicas": partition.replicas,
        "devices": device_count(partition),
        "accumulation": method.accumulation,
        "micro_batch": spec.data.batch,
    }


def _figures_of_method(plan: Plan | None, table: MethodSpec) -> dict[str, Any]:
    if plan is None:
        return dict.fromkeys(_OF_METHODS)
    in_paper = "lockstep" in METHODS[table.name].schedules and table.keep is None
    return {
        "paper_total": plan.paper_accounting["total"] if in_paper else None,
        "channel_bytes": sum(stage.channel_bytes.forward + stage.channel_bytes.backward for stage in plan.stages),
        "flops": sum(stage.flops.forward + stage.flops.backward for stage in plan.stages),
        "seconds_per_micro_batch": plan.timing.tick_seconds,
    }


def _for_the_samples_of(given: Spec, row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of replicas with the memory of all of them, and with the work and the messages of as many samples as the other rows'."""
    replicas, samples = row["replicas"] / given.partition.replicas, given.data.batch / row["micro_batch"]
    if row["memory_total"] is None or replicas == samples == 1:
        return row
    return {
        **row,
        "memory_total": round(row["memory_total"] * replicas),
        "paper_total": None,
        "channel_bytes": round(row["channel_bytes"] * samples),
        "flops": round(row["flops"] * samples),
    }


def _says_the_same(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether depths, or what nodes keep, were found to be those of another row."""
    same = ("method", "replicas", "memory_peak", "samples_per_second", "staleness")
    return row["memory_peak"] is not None and all(row[key] == other[key] for key in same)


def _methods(given: MethodSpec) -> Iterator[MethodSpec]:
    """Yield methods with their schedules; then the specification's own, if it says what nodes keep."""
    for method in METHODS.values():
        for schedule in method.schedules:
            if schedule != "sequential" or method.schedules == ("sequential",):
                yield replace_method(given, method.name, schedule)
    if given.keep is not None:
        yield given


def _said(plans: Iterable[Plan]) -> list[str]:
    """Return the assumptions of several plans, each sentence once."""
    return list(dict.fromkeys(text for plan in plans for text in plan.assumptions))
