"""What a run's stages and processes took, next to what was planned of them.

A stage's seconds are the host's, for one operation, and count what the process did for it: reading samples and sending messages as well as
computing. What a process grew by from just before its stages were built is nearest to the plan's bytes of these stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from petra_graph.compiler.plan import Plan
from petra_graph.record.recorded_run import grown_bytes
from petra_graph.report.plan_text import ranges_label
from petra_graph.report.tables import Column, name_column, table_lines, value_column
from petra_graph.units import memory, seconds

_VERBS, _SOURCES = ("forward", "backward", "update"), ("planned", "measured")
_ANY_WIDTH = 1000


def compare_with_plan(plan: Plan | None, stages: int, processes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return each stage's seconds, and each process's bytes, as planned and as measured, as JSON; null if not planned or not measured."""
    planned = {stage.index: stage for stage in plan.stages} if plan else {}
    rows, sizes = [], []
    for index in range(1, stages + 1):
        timed, both = [one for process in processes for one in process["stages"] if one["stage"] == index], {}
        for verb in _VERBS:
            # Replicas of a stage count together; some processes have not timed it.
            spans = [one[verb] for one in timed if verb in one]
            operations = sum(one["operations"] for one in spans)
            measured = sum(one["seconds"] for one in spans) / operations if operations else None
            both[verb] = {"planned": getattr(planned[index].seconds, verb) if plan else None, "measured": measured}
        rows.append({"stage": index, "seconds": both})
    for process in processes:
        own = [stage["stage"] for stage in process["stages"]]
        size = sum(planned[index].bytes.total for index in own) if plan else None
        held = {"planned": size, "measured": grown_bytes(process)}
        sizes.append({"rank": process["rank"], "stages": own, "bytes": held})
    return {"stages": rows, "processes": sizes}


def measured_columns(found: Mapping[str, Any]) -> list[Column]:
    """Return the seconds of stages as a table; columns in which nothing is known are left out."""
    columns = [value_column("stage", [stage["stage"] for stage in found["stages"]])]
    for verb in _VERBS:
        for source in _SOURCES:
            values = [stage["seconds"][verb][source] for stage in found["stages"]]
            if any(value is not None for value in values):
                columns.append(value_column(f"{verb}\n{source}", values, seconds))
    return columns


def process_columns(found: Mapping[str, Any]) -> list[Column]:
    """Return the memory of processes as a table."""
    processes = found["processes"]
    sizes = {source: [process["bytes"][source] for process in processes] for source in _SOURCES}
    return [
        value_column("process", [process["rank"] for process in processes]),
        name_column("stages", (ranges_label(process["stages"]) for process in processes)),
        *(value_column(f"memory\n{source}", each, memory) for source, each in sizes.items()),
    ]


def comparison_text(found: Mapping[str, Any]) -> str:
    """Write what `compare_with_plan` has returned as two tables, one of stages and one of processes."""
    tables = (measured_columns(found), process_columns(found))
    return "\n".join(line for columns in tables for line in ("", *table_lines(columns, _ANY_WIDTH)))
