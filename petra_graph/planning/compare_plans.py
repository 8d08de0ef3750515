"""Plans compared: `plan --compare`, one network under every training method, each placed for itself, and which of them to choose; and given specs.

A plan beats another one if it is at least as fast, as little late and as small on its fullest device, and better in one of these. If plans are
about as fast as the fastest, the one whose gradients are least late is recommended: staleness costs accuracy, and how much no plan can say. Of several
that are equally late, one that needs clearly less memory is preferred to one that is faster by less than predictions are sure of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from attrs import evolve

from petra_graph.compiler.durations import flops
from petra_graph.compiler.prediction import Prediction
from petra_graph.compiler.spec_checks import device_count
from petra_graph.errors import NoFeasiblePlan, SpecError
from petra_graph.planning.plan_advice import device_guesses, shared_assumptions
from petra_graph.planning.plan_spec import Planner
from petra_graph.planning.predict_plan import Plan
from petra_graph.planning.run_advice import staleness
from petra_graph.planning.share_devices import clip_by_stage, keys_to_set, replace_method, shared_devices
from petra_graph.program.method import METHODS
from petra_graph.program.plan_document import Document
from petra_graph.program.schedule import schedule_text
from petra_graph.spec.model import MethodSpec, Spec
from petra_graph.units import memory

ALONE = "one device that trains alone with reversible-backprop"
"""What speed-ups are over."""
_ABOUT = 0.95
"""The share of the greatest throughput from which plans are about as fast; predictions are not surer than that."""
_ALIKE = 1.01
"""The ratio up to which two figures are the same."""
_CLEARLY_SMALLER = 0.9
"""The ratio of memory for which speed within `_ABOUT` is given up."""
_BASE = ("pipedream", "lockstep", None)
"""The paper's first row (table 3), which savings are relative to."""
_FIGURES = ("memory_total", "memory_peak", "fits", "staleness", "samples_per_second", "speedup", "exact")
_OF_METHODS = ("paper_total", "channel_bytes", "flops", "seconds_per_micro_batch")
"""Figures of rows; None where there is no feasible plan."""


def compare_methods(planner: Planner) -> Document:
    """Return the memory, staleness and speed of every method on the specification's network, each placed for itself.

    Rows of replicas follow, which share the same devices and average the same samples in an update (`planning.share_devices`). A row
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
        return {**_described(given, spec), **_figures_of_method(plan, spec.method), **made, "error": error}

    rows = [row_of(evolve(given, method=method, optimizer=optimizer)) for method in _methods(given.method)]
    if all(isinstance(row["error"], SpecError) for row in rows):
        raise rows[0]["error"]
    alone = next((row["samples_per_second"] / row["speedup"] for row in rows if row["speedup"]), 1.0)
    base = next(row for row in rows if (row["method"], row["schedule"], row["keep"]) == _BASE)
    flushed = evolve(replace_method(given.method, "1f1b-flush", "1f1b"), keep="auto")
    for variant in (evolve(given, method=flushed, optimizer=optimizer), *shared_devices(given)):
        row = _for_the_samples_of(given, row_of(variant))
        if not any(_says_the_same(row, other) for other in rows):
            rows.append(row)
    for row in rows:
        del row["error"]
        if row["samples_per_second"] is not None:
            row["speedup"] = row["samples_per_second"] / alone
        for saving, total in (("saving", "memory_total"), ("paper_saving", "paper_total")):
            known = row[total] is not None and base[total] is not None
            row[saving] = 1 - row[total] / base[total] if known else None
    return {
        "name": given.name,
        "micro_batch": given.data.batch,
        "rows": rows,
        "recommended": recommend(rows),
        "speedup_over": ALONE,
        "assumptions": _assumptions(plans),
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
    for name, make in planners.items():
        made, plan, error = _try_plan(partial(_plan_of, make))
        plans += [] if plan is None else [plan]
        errors.append(error)
        stages = None if plan is None else len(plan.prediction.programs)
        rows.append({"name": name, "stages": stages, **made, "refused": plan is None})
    if all(isinstance(error, SpecError) for error in errors) and errors[0] is not None:
        raise errors[0]
    return {
        "name": plans[0].spec.name if plans else "plans",
        "rows": rows,
        "speedup_over": ALONE,
        "assumptions": _assumptions(plans),
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
    return figures(plan), plan, None


def figures(plan: Plan) -> dict[str, Any]:
    """Return the speed and the memory of a plan, as rows have them, and the row's note."""
    prediction = plan.prediction
    notes = list(_too_large(prediction))
    if plan.spec.method.schedule == "auto":
        notes.append(schedule_text(prediction.placement.schedule))
    if not prediction.timing.exact:
        notes.append("about: no period was found, and times are means over a long simulation")
    return {
        "memory_total": prediction.total_memory.total,
        "memory_peak": plan.peak_bytes,
        "fits": plan.fits,
        "staleness": max(map(staleness, prediction.programs)),
        "samples_per_second": plan.samples_per_second,
        "speedup": prediction.speedup,
        "exact": prediction.timing.exact,
        "note": "; ".join(notes),
    }


def _too_large(prediction: Prediction) -> Iterator[str]:
    known = {name: left for name, left in prediction.spare_bytes.items() if left is not None}
    worst = min(known, key=known.__getitem__, default=None)
    if worst is not None and (left := known[worst]) < 0:
        room = left + prediction.device_memory[worst].total
        yield f"does not fit: {worst} needs {memory(-left)} more than its {memory(room)}"


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
    prediction = plan.prediction
    in_paper = "lockstep" in METHODS[table.name].schedules and table.keep is None
    work = [flops(program, prediction.inputs.costs) for program in prediction.programs]
    return {
        "paper_total": prediction.paper.total if in_paper else None,
        "channel_bytes": sum(size.forward + size.backward for size in prediction.channel_bytes.values()),
        "flops": sum(sum(each.values()) for each in work),
        "seconds_per_micro_batch": prediction.timing.tick_seconds,
    }


def _for_the_samples_of(given: Spec, row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of replicas with the memory of all of them, and with the work and the messages of as many samples as the other rows'."""
    if row["memory_total"] is None:
        return row
    replicas, samples = row["replicas"] / given.partition.replicas, given.data.batch / row["micro_batch"]
    return {
        **row,
        "memory_total": round(row["memory_total"] * replicas),
        "paper_total": None,
        "channel_bytes": round(row["channel_bytes"] * samples),
        "flops": round(row["flops"] * samples),
    }


def _says_the_same(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether nodes that may keep what they like keep what the method says."""
    same = ("method", "replicas", "memory_peak", "samples_per_second")
    return row["memory_peak"] is not None and all(row[key] == other[key] for key in same)


def _methods(given: MethodSpec) -> Iterator[MethodSpec]:
    """Yield methods with their schedules; then the specification's own, if it says what nodes keep."""
    for method in METHODS.values():
        for schedule in method.schedules:
            if schedule != "sequential" or method.schedules == ("sequential",):
                yield replace_method(given, method.name, schedule)
    if given.keep is not None:
        yield given


def _assumptions(plans: Iterable[Plan]) -> list[str]:
    """Return the assumptions of several plans, each sentence once; cuts are each plan's own."""
    said: list[str] = []
    for plan in plans:
        said += [*device_guesses(plan.prediction.inputs), *shared_assumptions(plan.prediction, plan.spec)]
    return list(dict.fromkeys(said))


def recommend(rows: Sequence[dict[str, Any]]) -> int | None:
    """Mark the rows that no other one beats as `unbeaten`, and return the number of the recommended one; None if no row fits.

    Args:
        rows: with `samples_per_second`, `staleness` in updates, `memory_peak` in bytes, and `fits`, which is None where the memory of
            devices is not known.
    """
    usable = [row for row in rows if row["samples_per_second"] and row["fits"] is not False]
    for row in rows:
        row["unbeaten"] = row in usable and not any(_beats(other, row) for other in usable)
    if not usable:
        return None
    fastest = max(row["samples_per_second"] for row in usable)
    candidates = [row for row in usable if row["samples_per_second"] >= _ABOUT * fastest]
    least = min(row["staleness"] for row in candidates)
    alike = [row for row in candidates if row["staleness"] == least]
    best = _fastest(alike)
    smallest = min(alike, key=lambda row: row["memory_peak"])
    if smallest["memory_peak"] <= _CLEARLY_SMALLER * best["memory_peak"]:
        as_small = _ALIKE * smallest["memory_peak"]
        best = _fastest(row for row in alike if row["memory_peak"] <= as_small)
    return rows.index(best)


def _fastest(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return max(rows, key=lambda row: (row["samples_per_second"], -row["memory_peak"]))


def _beats(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    ratios = (
        one["samples_per_second"] / other["samples_per_second"],
        (1 + other["staleness"]) / (1 + one["staleness"]),
        other["memory_peak"] / one["memory_peak"],
    )
    return bool(min(ratios) >= 1 / _ALIKE and max(ratios) > _ALIKE)
