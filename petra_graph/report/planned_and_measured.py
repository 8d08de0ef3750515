"""What a run's stages and processes took, next to what was planned of them.

A stage's seconds are the host's, for one operation, and count what the process did for it: reading samples and sending messages as well as
computing. What a process grew by from just before its stages were built is nearest to the plan's bytes of these stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from petra_graph import units
from petra_graph.program.plan_document import Document
from petra_graph.report.plan.short_labels import ranges_label
from petra_graph.report.text_tables import name_column, number_column, render, table, text_column

VERBS = ("forward", "backward", "update")
_STAGES_WIDTH = 40
_ANY_WIDTH = 1000


def operations_of(stage: int, processes: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, float]]:
    """Return how many operations of a stage its processes have timed, and their seconds, by verb; replicas count together."""
    timed = [one for process in processes for one in process["stages"] if one["stage"] == stage]
    found = {verb: [one[verb] for one in timed if verb in one] for verb in VERBS}
    return {
        verb: (sum(one["operations"] for one in each), sum(one["seconds"] for one in each))
        for verb, each in found.items()
        if each
    }


def compare_with_plan(plan: Document, processes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return each stage's seconds, and each process's bytes, as planned and as measured, as JSON; null if nothing was measured."""
    stages = []
    for stage in plan["stages"]:
        timed = operations_of(stage["index"], processes)
        measured = {verb: seconds / operations for verb, (operations, seconds) in timed.items() if operations}
        seconds = {verb: {"planned": stage["seconds"].get(verb), "measured": measured.get(verb)} for verb in VERBS}
        stages.append({"stage": stage["index"], "seconds": seconds})
    sizes = {stage["index"]: stage["bytes"]["total"] for stage in plan["stages"]}
    hosts = []
    for process in processes:
        own = [stage["stage"] for stage in process["stages"]]
        grown = sum(process["cuda_peak_bytes"].values()) or process["peak_bytes"] - process["peak_bytes_before"]
        both = {"planned": sum(sizes.get(index, 0) for index in own), "measured": grown}
        hosts.append({"rank": process["rank"], "stages": own, "bytes": both})
    return {"stages": stages, "processes": hosts}


def comparison_text(found: Mapping[str, Any]) -> str:
    """Write what `compare_with_plan` has returned as two tables, one of stages and one of processes."""
    stages, processes = found["stages"], found["processes"]
    seconds = {
        f"{verb}\n{source}": [stage["seconds"][verb][source] for stage in stages]
        for verb in VERBS
        for source in ("planned", "measured")
    }
    known = {head: values for head, values in seconds.items() if any(value is not None for value in values)}
    # Numbers that are compared have one unit.
    unit = units.SECONDS.column([value for values in known.values() for value in values if value is not None])
    of_stages = [
        text_column("stage", [stage["stage"] for stage in stages]),
        *(number_column(head, units.SECONDS, values, unit=unit) for head, values in known.items()),
    ]
    of_processes = [
        text_column("process", [process["rank"] for process in processes]),
        name_column("stages", (ranges_label(process["stages"]) for process in processes), _STAGES_WIDTH),
        *(
            text_column(f"memory\n{source}", [process["bytes"][source] for process in processes], write=units.memory)
            for source in ("planned", "measured")
        ),
    ]
    parts = (part for columns in (of_stages, of_processes) for part in (Text(), table(columns)))
    return render(parts, width=_ANY_WIDTH, colour=False)


def what_the_plan_said(summary: Mapping[str, Any]) -> str:
    """Return the speed that a run's plan gave, if it was measured: a profile's; that of a data sheet says little of a run that was measured."""
    planned = summary.get("predicted") or {}
    speed, expected = planned.get("samples_per_second"), planned.get("expected_samples_per_second")
    if not speed or not expected or planned.get("from") != "profile" or summary.get("trial"):
        return ""
    likely = units.percent(max(1 - expected[0] / speed, expected[1] / speed - 1), 0)
    return f"the plan said {units.rate(speed)}, by a profile: usually within {likely}, on a quiet machine"
