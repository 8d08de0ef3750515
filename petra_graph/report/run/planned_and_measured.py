"""A run's stages and processes as tables: what was planned of each, next to what it measured.

Figures of the same kind are next to each other. A stage's seconds are the host's, for one operation, and count what the process did for it:
reading samples and sending messages as well as computing. A process's peak counts Python, torch's libraries and the data set; what it
grew by from just before its stages were built is nearest to the plan's bytes of these stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen
from rich.text import Text

from petra_graph import units
from petra_graph.program.plan_document import Document
from petra_graph.report.plan.short_labels import nodes_label, ranges_label
from petra_graph.report.text_tables import Column, name_column, number_column, render, table, text_column

_VERBS = ("forward", "backward", "update")
_NODES_WIDTH = 40
_ANY_WIDTH = 1000


@frozen(kw_only=True)
class StageSeconds:
    """What the processes that host a stage measured of it; replicas together."""

    operations: Mapping[str, int]
    seconds: Mapping[str, float]
    training_seconds: float
    """The seconds of training of these processes together."""

    @classmethod
    def of(cls, index: int, processes: Sequence[Mapping[str, Any]]) -> StageSeconds:
        """Gather a stage's operations in the processes' figures."""
        hosts = [(process, stage) for process in processes for stage in process["stages"] if stage["stage"] == index]
        verbs = [verb for verb in _VERBS if any(verb in stage for _, stage in hosts)]
        return cls(
            operations={verb: sum(stage.get(verb, {}).get("operations", 0) for _, stage in hosts) for verb in verbs},
            seconds={verb: sum(stage.get(verb, {}).get("seconds", 0.0) for _, stage in hosts) for verb in verbs},
            training_seconds=sum(process["training_seconds"] for process, _ in hosts),
        )

    def each(self, verb: str) -> float | None:
        """Return the mean seconds of an operation; None if it was not measured."""
        return self.seconds[verb] / self.operations[verb] if self.operations.get(verb) else None

    @property
    def busy(self) -> float | None:
        """The share of the training that the stage's operations took."""
        taken = sum(self.seconds.values())
        return taken / self.training_seconds if taken and self.training_seconds else None

    def rate(self, micro_batch: int) -> float | None:
        """Return the samples that the stage trains on in a second of its own operations."""
        taken = sum(self.seconds.values())
        return micro_batch * self.operations["forward"] / taken if taken and self.operations.get("forward") else None


def what_the_plan_said(summary: Mapping[str, Any]) -> str:
    """Return the speed that a run's plan gave, if it was measured: a profile's; that of a data sheet says little of a run that was measured."""
    planned = summary.get("predicted") or {}
    speed, expected = planned.get("samples_per_second"), planned.get("expected_samples_per_second")
    if not speed or not expected or planned.get("from") != "profile" or summary.get("trial"):
        return ""
    likely = units.percent(max(1 - expected[0] / speed, expected[1] / speed - 1), 0)
    return f"the plan said {units.rate(speed)}, by a profile: usually within {likely}, on a quiet machine"


def processes_of(summary: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the processes' figures in a summary; () if the run did not come to its end."""
    found: Sequence[Mapping[str, Any]] = (summary.get("measured") or {}).get("processes", ())
    return found


def stage_tables(plan: Document, summary: Mapping[str, Any]) -> Iterator[tuple[str, list[Column]]]:
    """Yield the stages as planned, and their operations' seconds as planned and measured: a title and columns each."""
    stages = plan["stages"]
    index = text_column("stage", [stage["index"] for stage in stages])
    yield (
        "as planned",
        [
            index,
            name_column("nodes", (nodes_label(stage["nodes"]) for stage in stages), _NODES_WIDTH),
            name_column("device", (stage["device"] for stage in stages), _NODES_WIDTH),
            text_column("depth", [stage["depth"] for stage in stages]),
            text_column("staleness\nupdates", [stage["staleness"] for stage in stages], write=units.number),
            number_column("parameters", units.COUNT_WORDS, [stage["parameters"] for stage in stages]),
            number_column("memory", units.BINARY, [stage["bytes"]["total"] for stage in stages]),
        ],
    )
    found = [StageSeconds.of(stage["index"], processes_of(summary)) for stage in stages]
    if not any(each.seconds for each in found):
        return

    planned = {verb: [stage["seconds"][verb] for stage in stages] for verb in ("forward", "backward")}
    measured = {verb: [each.each(verb) for each in found] for verb in _VERBS}
    every = [value for values in (*planned.values(), *measured.values()) for value in values if value is not None]
    unit = units.SECONDS.column(every)  # numbers that are compared have one unit
    columns = [index]
    for verb in _VERBS:
        if verb in planned:
            columns.append(number_column(f"{verb}\nplanned", units.SECONDS, planned[verb], unit=unit))
        columns.append(number_column(f"{verb}\nmeasured", units.SECONDS, measured[verb], unit=unit))
    rates = [each.rate(plan["micro_batch"]) for each in found]
    columns.append(text_column("busy\nmeasured", [each.busy for each in found], write=units.percent))
    columns.append(text_column("samples in a\nbusy second", rates, write=units.PLAIN.text))
    yield "planned and measured", columns


def process_columns(plan: Document | None, summary: Mapping[str, Any]) -> list[Column] | None:
    """Return each process's memory as planned and measured; None if nothing was measured."""
    processes = processes_of(summary)
    if not processes:
        return None
    hosted = [[stage["stage"] for stage in process["stages"]] for process in processes]
    sizes = {stage["index"]: stage["bytes"]["total"] for stage in plan["stages"]} if plan else {}
    memory = {"planned\nfor its stages": [sum(sizes.get(index, 0) for index in own) or None for own in hosted]}
    if any(process["cuda_peak_bytes"] for process in processes):
        memory["CUDA peak\nmeasured"] = [sum(one["cuda_peak_bytes"].values()) or None for one in processes]
    memory["growth since before\nits stages were built"] = [
        process["peak_bytes"] - process["peak_bytes_before"] for process in processes
    ]
    memory["peak of the\nwhole process"] = [process["peak_bytes"] for process in processes]
    return [
        text_column("process", [process["rank"] for process in processes]),
        name_column("stages", map(ranges_label, hosted), _NODES_WIDTH),
        *(text_column(head, values, write=units.memory) for head, values in memory.items()),
    ]


def compared(plan: Document, processes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return each stage's seconds, and each process's bytes, as planned and as measured, as JSON; null if nothing was measured."""
    stages = []
    for stage in plan["stages"]:
        found, planned = StageSeconds.of(stage["index"], processes), stage["seconds"]
        seconds = {verb: {"planned": planned.get(verb), "measured": found.each(verb)} for verb in _VERBS}
        stages.append({"stage": stage["index"], "seconds": seconds})
    sizes = {stage["index"]: stage["bytes"]["total"] for stage in plan["stages"]}
    hosts = []
    for process in processes:
        own = [stage["stage"] for stage in process["stages"]]
        grown = sum(process["cuda_peak_bytes"].values()) or process["peak_bytes"] - process["peak_bytes_before"]
        both = {"planned": sum(sizes.get(index, 0) for index in own), "measured": grown}
        hosts.append({"rank": process["rank"], "stages": own, "bytes": both})
    return {"stages": stages, "processes": hosts}


def comparison_text(plan: Document, summary: Mapping[str, Any]) -> str:
    """Write each stage's seconds and each process's memory, as planned and as measured, as text."""
    tables = [columns for title, columns in stage_tables(plan, summary) if title != "as planned"]
    tables += [columns] if (columns := process_columns(plan, summary)) else []
    return render((part for columns in tables for part in (Text(), table(columns))), width=_ANY_WIDTH, colour=False)
