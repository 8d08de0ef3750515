"""`plan --scale`: one network on more and more devices, in longer pipelines and then in replicas of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

from attrs import evolve

from petra_graph.errors import NoFeasiblePlan, SpecError
from petra_graph.planning.delay_problems import staleness
from petra_graph.planning.plan_spec import Planner
from petra_graph.planning.predict_plan import Plan
from petra_graph.program.plan_document import Document
from petra_graph.spec.model import Spec
from petra_graph_report.compare.compare_plans import assumptions_of, inexact_note, why_refused

_STAGES_WITH_MEMORY = 256
"""Stages up to which memory is predicted in a table of device counts; the operations of more would take minutes."""


def scale(planner: Planner, counts: Sequence[int]) -> Document:
    """Return the throughput by the number of devices, all of the type of the specification's first.

    A pipeline has one stage a device, up to one a node. More devices than nodes are shared by replicas: the faster of
    the fewest replicas that use all devices, and of the most pipelines with a stage a node. Every update waits for the
    replicas' all-reduce, none of it hidden: a bound from below. Speed-ups are over one device, be it among `counts` or not, and
    be its memory enough or not.

    Raises:
        SpecError, PluginError: as `Planner.plan`.
    """
    nodes = len(planner.checked.graph.order)
    rows: list[dict[str, Any]] = []
    plans: list[Plan] = []
    for count in counts:
        shares = {(count // replicas, replicas) for replicas in (ceil(count / nodes), max(1, count // nodes))}
        tried = [_scaled(planner, count, min(stages, nodes), replicas, plans) for stages, replicas in sorted(shares)]
        rows.append(max(tried, key=lambda row: row["samples_per_second"] or 0.0))
    alone = planner.plan(_alone(planner.spec)).samples_per_second
    for row in rows:
        rate = row["samples_per_second"]
        row["speedup"] = None if rate is None or not alone else rate / alone
        row["efficiency"] = None if row["speedup"] is None else row["speedup"] / row["devices"]
    return {
        "name": planner.spec.name,
        "rows": rows,
        "speedup_over": "one device with the whole network, whether its memory is enough or not",
        "assumptions": assumptions_of(plans),
    }


def _scaled(planner: Planner, count: int, stages: int, replicas: int, plans: list[Plan]) -> dict[str, Any]:
    """Return a row, and add its plan, where there is one."""
    common = {"devices": count, "stages": stages, "replicas": replicas}
    try:
        plan = planner.plan(_with_devices(planner.spec, stages, replicas))
    except (NoFeasiblePlan, SpecError) as error:
        keys = ("samples_per_second", "memory_peak", "fill_seconds", "bytes_per_link", "staleness", "exact")
        note = why_refused(error)
        return {**common, **dict.fromkeys(keys), "note": note}
    plans.append(plan)
    prediction, timing = plan.prediction, plan.prediction.timing
    few = len(prediction.programs) <= _STAGES_WITH_MEMORY
    unused = count - stages * replicas
    left_over = [f"{unused} device{'s are' if unused > 1 else ' is'} left over"] if unused else []
    return {
        **common,
        "samples_per_second": plan.samples_per_second,
        "memory_peak": plan.peak_bytes if few else None,
        "fill_seconds": timing.fill_seconds,
        "bytes_per_link": max((size.forward + size.backward for size in prediction.channel_bytes.values()), default=0),
        "staleness": max(map(staleness, prediction.programs)),
        "exact": timing.exact,
        "note": "; ".join([*left_over, *inexact_note(prediction)]),
    }


def _with_devices(spec: Spec, count: int, replicas: int) -> Spec:
    """Return the specification with `count` devices of its first one's type, a stage each, in each replica."""
    partition, schedule = spec.partition, spec.method.schedule
    kind = partition.device_type[0] if isinstance(partition.device_type, tuple) else partition.device_type
    memory = partition.memory[0] if isinstance(partition.memory, tuple) else partition.memory
    if kind is None and isinstance(partition.devices, tuple) and partition.devices[0].startswith("cpu"):
        kind = "cpu"
    partition = evolve(partition, stages=count, devices=count, replicas=replicas, device_type=kind, memory=memory)
    method = evolve(spec.method, schedule="auto") if isinstance(schedule, tuple) else spec.method
    return evolve(spec, partition=partition, method=method)


def _alone(spec: Spec) -> Spec:
    """Return the specification with one device that has any memory."""
    one = _with_devices(spec, 1, 1)
    return evolve(one, partition=evolve(one.partition, memory=None))


def device_counts(text: str) -> list[int]:
    """Read "1,2,4,...,64": counts, where "..." continues the two counts before it.

    Raises:
        SpecError: the text is not such a list.
    """
    counts: list[int] = []
    parts = [part.strip() for part in text.split(",")]
    try:
        for index, part in enumerate(parts):
            if part in {"...", "…"}:
                counts += _between(counts, int(parts[index + 1]))
            else:
                counts.append(int(part))
    except (ValueError, IndexError):
        counts = []
    if not counts or min(counts) < 1 or sorted(set(counts)) != counts:
        raise SpecError(
            f"--scale takes growing numbers of devices (got {text!r})", 'for example "1,2,4,8", or "1,2,4,...,1024"'
        )
    return counts


def _between(counts: Sequence[int], last: int) -> list[int]:
    """Return the counts below `last` that continue the last two: by their ratio if it is whole, else by their step."""
    before, latest = counts[-2], counts[-1]
    step, (factor, rest) = latest - before, divmod(latest, before)
    by_ratio = rest == 0 and factor > 1 and counts[-3:-2] in ([], [before // factor])
    more: list[int] = []
    while step > 0 and (latest := latest * factor if by_ratio else latest + step) < last:
        more.append(latest)
    return more
