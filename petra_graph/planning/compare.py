"""Several plans of one network: its methods side by side, and its speed by the number of devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Any

import attrs
from attrs import evolve

from petra_graph.compiler.prediction import Prediction
from petra_graph.errors import NoFeasiblePlan, SpecError
from petra_graph.planning.plan import Planner
from petra_graph.program.method import METHODS
from petra_graph.program.plan_document import Document
from petra_graph.program.schedule import schedule_text
from petra_graph.spec.model import AskedName, Spec

_MANY = 256
"""Stages up to which memory is predicted in a table of device counts."""
_LIKE_WITH_LIKE = "lockstep"
"""The schedule of the rows that the first one's memory is compared with: the paper's."""


def compare(planner: Planner) -> Document:
    """Return what each method costs on the specification's network and devices, each cut and placed for itself.

    Savings are of `pipedream` under `lockstep`, the paper's first row (table 3).

    Raises:
        SpecError, PluginError: as `Planner.plan`.
    """
    rows = [_row(planner, method, schedule) for method, schedule in _methods()]
    base = next(row for row in rows if row["method"] == "pipedream" and row["schedule"] == _LIKE_WITH_LIKE)
    for row in rows:
        for saving, total in (("saving", "memory_total"), ("paper_saving", "paper_total")):
            known = row[total] is not None and base[total] is not None
            row[saving] = 1 - row[total] / base[total] if known else None
    return {"name": planner.spec.name, "micro_batch": planner.spec.data.batch, "rows": rows}


def _methods() -> Iterator[tuple[str, AskedName]]:
    for method in METHODS.values():
        for schedule in method.schedules:
            if schedule != "sequential" or method.schedules == ("sequential",):
                yield method.name, schedule


def _row(planner: Planner, method: str, schedule: AskedName) -> dict[str, Any]:
    spec = planner.spec
    asked = evolve(
        spec,
        method=evolve(
            spec.method, name=method, schedule=schedule, reversible=None, buffered=None, backward=None, flush=None
        ),
        optimizer=_without_global_clip(spec),
    )
    try:
        made = planner.plan(asked)
    except NoFeasiblePlan as error:
        return _nothing(method, schedule, str(error))
    prediction = made.prediction
    stages = made.document(with_timeline=False, with_advice=False)["stages"]
    return {
        "method": method,
        "schedule": schedule,
        "memory_total": sum(stage["bytes"]["total"] for stage in stages),
        "memory_peak": max(held.total for held in prediction.device_memory.values()),
        "paper_total": prediction.paper.total if "lockstep" in METHODS[method].schedules else None,
        "staleness": max(stage["staleness"] for stage in stages),
        "channel_bytes": sum(size.forward + size.backward for size in prediction.channel_bytes.values()),
        "flops": sum(sum(stage["flops"].values()) for stage in stages),
        "seconds_per_micro_batch": prediction.timing.tick_seconds,
        "speedup": prediction.speedup,
        "note": f"depths {schedule_text(prediction.schedule).removeprefix('depths ')}" if schedule == "auto" else "",
    }


def _without_global_clip(spec: Spec) -> Any:
    """Clip by stage where all methods are compared: one norm over all stages is for synchronous ones."""
    clip = spec.optimizer.clip
    return spec.optimizer if clip is None else evolve(spec.optimizer, clip=attrs.evolve(clip, scope="stage"))


def _nothing(method: str, schedule: str, note: str) -> dict[str, Any]:
    keys = (
        "memory_total", "memory_peak", "paper_total", "staleness", "channel_bytes", "flops", "seconds_per_micro_batch",
        "speedup",
    )  # fmt: skip
    return {"method": method, "schedule": schedule, **dict.fromkeys(keys), "note": note}


def scale(planner: Planner, counts: Sequence[int]) -> Document:
    """Return the throughput by the number of devices, all of the type of the specification's first.

    A pipeline is cut into as many stages as there are devices, one each, up to one a node. Where there are more, they
    are used by replicas, the faster of as many as share all and of as many whole pipelines as there are. Every update waits
    for their all-reduce, none of it hidden: a bound from below.

    Raises:
        SpecError, PluginError: as `Planner.plan`.
    """
    nodes = len(planner.checked.graph.order)
    rows: list[dict[str, Any]] = []
    for count in counts:
        shares = {(count // replicas, replicas) for replicas in (ceil(count / nodes), max(1, count // nodes))}
        tried = [_scaled(planner, count, min(stages, nodes), replicas) for stages, replicas in sorted(shares)]
        rows.append(max(tried, key=lambda row: row["samples_per_second"] or 0.0))
    alone = rows[0]
    for row in rows:
        rate, first = row["samples_per_second"], alone["samples_per_second"]
        row["speedup"] = None if rate is None or first is None else rate / first
        row["efficiency"] = None if row["speedup"] is None else row["speedup"] * alone["devices"] / row["devices"]
    return {"name": planner.spec.name, "rows": rows}


def _scaled(planner: Planner, count: int, stages: int, replicas: int) -> dict[str, Any]:
    common = {"devices": count, "stages": stages, "replicas": replicas}
    try:
        made = planner.plan(_with_devices(planner.spec, stages, replicas))
    except NoFeasiblePlan as error:
        keys = ("samples_per_second", "memory_peak", "fill_seconds", "bytes_per_link", "staleness")
        return {**common, **dict.fromkeys(keys), "note": str(error)}
    prediction = made.prediction
    batch = prediction.setting.costs.micro_batch
    speed = prediction.timing
    unused = count - stages * replicas
    return {
        **common,
        "samples_per_second": speed.samples_per_second(batch, replicas),
        "memory_peak": _peak(prediction),
        "fill_seconds": prediction.timing.fill_seconds,
        "bytes_per_link": max((size.forward + size.backward for size in prediction.channel_bytes.values()), default=0),
        "staleness": max(stale.updates for stale in prediction.timing.staleness),
        "note": f"{unused} device{'s are' if unused > 1 else ' is'} left over" if unused else "",
    }


def _peak(prediction: Prediction) -> int | None:
    """Return the fullest device's bytes; going through the operations of very many stages would take minutes."""
    if len(prediction.programs) > _MANY:
        return None
    return max(held.total for held in prediction.device_memory.values())


def _with_devices(spec: Spec, count: int, replicas: int) -> Spec:
    """Return the specification with `count` devices of its first one's type, a stage each, in each replica."""
    asked = spec.partition
    kind = asked.device_type[0] if isinstance(asked.device_type, tuple) else asked.device_type
    memory = asked.memory[0] if isinstance(asked.memory, tuple) else asked.memory
    if kind is None and isinstance(asked.devices, tuple) and asked.devices[0].startswith("cpu"):
        kind = "cpu"
    partition = evolve(asked, stages=count, devices=count, replicas=replicas, device_type=kind, memory=memory)
    schedule = spec.method.schedule
    method = evolve(spec.method, schedule="auto") if isinstance(schedule, tuple) else spec.method
    return evolve(spec, partition=partition, method=method)


def device_counts(text: str) -> list[int]:
    """Read "1,2,4,...,64": counts, and "..." for those that go on as the two before it do.

    Raises:
        SpecError: it is no such list.
    """
    try:
        found = _read([part.strip() for part in text.split(",")])
    except (ValueError, IndexError):
        found = []
    if not found or min(found) < 1 or sorted(set(found)) != found:
        raise SpecError(
            f"--scale takes growing numbers of devices (got {text!r})", 'for example "1,2,4,8", or "1,2,4,...,1024"'
        )
    return found


def _read(parts: Sequence[str]) -> list[int]:
    found: list[int] = []
    for place, part in enumerate(parts):
        if part in {"...", "…"}:
            found += _between(found, int(parts[place + 1]))
        else:
            found.append(int(part))
    return found


def _between(found: Sequence[int], last: int) -> list[int]:
    """Go on as the last two, by their ratio where it is whole and they are more than one step apart, to before `last`."""
    before, latest = found[-2], found[-1]
    factor = latest // before if latest % before == 0 else 1
    doubling = factor > 1 and (len(found) < 3 or found[-3] * factor == before)  # noqa: PLR2004
    more: list[int] = []
    step = latest - before
    following = latest * factor if doubling else latest + step
    while following < last and step > 0:
        more.append(following)
        following = following * factor if doubling else following + step
    return more
