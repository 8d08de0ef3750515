"""What a run's stages and processes took, next to what was planned of them.

A stage's seconds are the host's, for one operation, and count all that the process did for it. What a process grew by is nearest to the plan's bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from petra_graph.compiler.plan import Plan
from petra_graph.record.run_directory import grown_bytes
from petra_graph.report.plan_text import nodes_label, ranges_label
from petra_graph.report.tables import Column, name_column, value_column
from petra_graph.units import memory, seconds

_VERBS = ("forward", "backward", "update")


def compare_with_plan(plan: Plan | None, stages: int, processes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return each stage's seconds, and each process's bytes, as planned and as measured, as JSON; null if not planned or not measured."""
    planned = {stage.index: stage for stage in plan.stages} if plan else {}
    timed, rows, sizes = [one for process in processes for one in process["stages"]], [], []
    for index in range(1, stages + 1):
        took: dict[str, dict[str, float | None]] = {}
        for verb in _VERBS:
            # Replicas of a stage count together; some processes have not timed it.
            spans = [one[verb] for one in timed if one["stage"] == index and verb in one]
            operations = sum(one["operations"] for one in spans)
            measured = sum(one["seconds"] for one in spans) / operations if operations else None
            took[verb] = {"planned": getattr(planned[index].seconds, verb) if plan else None, "measured": measured}
        rows.append({"stage": index, "seconds": took})
    for process in processes:
        own = [stage["stage"] for stage in process["stages"]]
        size = sum(planned[index].bytes.total for index in own) if plan else None
        held = {"planned": size, "measured": grown_bytes(process)}
        sizes.append({"rank": process["rank"], "stages": own, "bytes": held})
    return {"stages": rows, "processes": sizes}


def compared_tables(found: Mapping[str, Any], nodes: Sequence[Sequence[str]]) -> list[tuple[str, list[Column]]]:
    """Return what `compare_with_plan` has returned as two tables: the seconds of stages, with their nodes, and the memory of processes."""
    stages, processes = found["stages"], found["processes"]
    of_stages = [value_column("stage", [one["stage"] for one in stages]), name_column("nodes", map(nodes_label, nodes))]
    for verb, source in product(_VERBS, ("planned", "measured")):
        values = [one["seconds"][verb][source] for one in stages]
        of_stages.append(value_column(f"{verb}\n{source}", values, seconds))
    of_processes = [
        value_column("process", [one["rank"] for one in processes]),
        name_column("stages", (ranges_label(one["stages"]) for one in processes)),
        value_column("memory\nplanned", [one["bytes"]["planned"] for one in processes], memory),
        value_column("memory\nmeasured", [one["bytes"]["measured"] for one in processes], memory),
    ]
    return [("stages", of_stages)] + [("memory of processes", of_processes)] * bool(processes)
