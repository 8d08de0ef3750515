"""A run's stages and processes: what each of them took, as charts and tables, next to what was planned of it if the run has a plan.

Figures of the same kind are next to each other. A process's peak counts Python, torch's libraries and the data set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from petra_graph import units
from petra_graph.program.plan_document import Document
from petra_graph.report.plan.short_labels import nodes_label, ranges_label
from petra_graph.report.planned_and_measured import VERBS, operations_of
from petra_graph.report.text_tables import Column, name_column, number_column, text_column
from petra_graph_report.line_chart import Chart, Line
from petra_graph_report.run.recorded_run import RecordedRun

_DECADES = 10.0
"""Stages whose throughput differs by this factor are drawn on a logarithmic axis."""
_NODES_WIDTH = 40


@frozen
class StageSeconds:
    """What the processes that host a stage measured of it; replicas together."""

    timed: Mapping[str, tuple[int, float]]
    """Operations and their seconds, by verb."""
    training_seconds: float
    """The seconds of training of these processes together."""

    @classmethod
    def of(cls, index: int, processes: Sequence[Mapping[str, Any]]) -> StageSeconds:
        """Gather a stage's operations in the processes' figures."""
        hosts = [process for process in processes if any(stage["stage"] == index for stage in process["stages"])]
        return cls(operations_of(index, processes), sum(process["training_seconds"] for process in hosts))

    def each(self, verb: str) -> float | None:
        """Return the mean seconds of an operation; None if it was not measured."""
        operations, seconds = self.timed.get(verb, (0, 0.0))
        return seconds / operations if operations else None

    @property
    def busy(self) -> float | None:
        """The share of the training that the stage's operations took."""
        return self._taken / self.training_seconds if self._taken and self.training_seconds else None

    def rate(self, micro_batch: int) -> float | None:
        """Return the samples that the stage trains on in a second of its own operations."""
        forwards, _ = self.timed.get("forward", (0, 0.0))
        return micro_batch * forwards / self._taken if self._taken and forwards else None

    @property
    def _taken(self) -> float:
        return sum(seconds for _, seconds in self.timed.values())


def processes_of(summary: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the processes' figures in a summary; () if the run did not come to its end."""
    found: Sequence[Mapping[str, Any]] = (summary.get("measured") or {}).get("processes", ())
    return found


def stage_seconds(run: RecordedRun) -> list[StageSeconds]:
    """Return what was measured of each stage."""
    processes = processes_of(run.summary)
    return [StageSeconds.of(index, processes) for index in range(1, 1 + len(run.resolved["partition"]["stages"]))]


def stage_charts(plan: Document | None, run: RecordedRun) -> list[Chart]:
    """Return the stages' staleness, if the run has a plan, and their throughput."""
    batch = run.resolved["data"]["batch"]
    stages = plan["stages"] if plan else []
    stale = [(stage["index"], stage["staleness"]) for stage in stages]
    rates = [(index, found.rate(batch)) for index, found in enumerate(stage_seconds(run), start=1)]
    by_profile = (run.summary.get("predicted") or {}).get("from") == "profile"
    taken = [(stage["index"], sum(stage["seconds"].values())) for stage in stages if by_profile]
    lines = [
        Line(name="measured", points=[(index, rate) for index, rate in rates if rate is not None]),
        Line(name="planned", points=[(index, batch / each) for index, each in taken if each], style=1),
    ]
    charts = [
        Chart(
            title="staleness by stage",
            lines=[Line(name="", points=stale)],
            x_name="stage",
            from_zero=True,
            ends=False,
            note="updates, in the mean",
        ),
        Chart(
            title="throughput by stage",
            lines=[line for line in lines if line.points],
            x_name="stage",
            from_zero=True,
            logarithmic_from=_DECADES,
            ends=False,
            note="samples in a busy second",
        ),
    ]
    return [chart for chart in charts if any(line.points for line in chart.lines)]


def stage_tables(plan: Document | None, run: RecordedRun) -> Iterator[tuple[str, list[Column]]]:
    """Yield the stages as planned, and their operations' seconds as measured, next to what was planned: a title and columns each."""
    found, nodes = stage_seconds(run), map(nodes_label, run.resolved["partition"]["stages"])
    naming = [
        text_column("stage", range(1, 1 + len(found))),
        name_column("nodes", nodes, _NODES_WIDTH),
    ]
    if plan:
        yield "as planned", [*naming, *_planned_columns(plan["stages"])]
    if not any(each.timed for each in found):
        return

    planned = {verb: [stage["seconds"][verb] for stage in plan["stages"]] for verb in VERBS[:2]} if plan else {}
    measured = {verb: [each.each(verb) for each in found] for verb in VERBS}
    every = [value for values in (*planned.values(), *measured.values()) for value in values if value is not None]
    unit = units.SECONDS.column(every)  # numbers that are compared have one unit
    word = "\nmeasured" if plan else ""
    columns = naming[:1] if plan else naming
    for verb in VERBS:
        if verb in planned:
            columns.append(number_column(f"{verb}\nplanned", units.SECONDS, planned[verb], unit=unit))
        columns.append(number_column(f"{verb}{word}", units.SECONDS, measured[verb], unit=unit))
    rates = [each.rate(run.resolved["data"]["batch"]) for each in found]
    columns.append(text_column(f"busy{word}", [each.busy for each in found], write=units.percent))
    columns.append(text_column("samples in a\nbusy second", rates, write=units.PLAIN.text))
    yield "planned and measured" if plan else "measured", columns


def _planned_columns(stages: Sequence[Document]) -> list[Column]:
    return [
        name_column("device", (stage["device"] for stage in stages), _NODES_WIDTH),
        text_column("depth", [stage["depth"] for stage in stages]),
        text_column("staleness\nupdates", [stage["staleness"] for stage in stages], write=units.number),
        number_column("parameters", units.COUNT_WORDS, [stage["parameters"] for stage in stages]),
        number_column("memory", units.BINARY, [stage["bytes"]["total"] for stage in stages]),
    ]


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
