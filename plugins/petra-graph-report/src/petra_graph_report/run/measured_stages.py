"""A run's stages: their staleness and throughput as charts, and, of a run without a plan, what was measured of them as a table."""

from __future__ import annotations

from petra_graph import units
from petra_graph.program.plan_document import Document
from petra_graph.report.plan.short_labels import nodes_label
from petra_graph.report.run.planned_and_measured import StageSeconds, processes_of
from petra_graph.report.text_tables import Column, name_column, number_column, text_column
from petra_graph_report.line_chart import Chart, Line
from petra_graph_report.run.recorded_run import RecordedRun

_DECADES = 10.0
"""Stages whose throughput differs by this factor are drawn on a logarithmic axis."""
_NODES_WIDTH = 40


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


def measured_tables(run: RecordedRun) -> list[tuple[str, list[Column]]]:
    """Return the table of stages of a run that has no plan: a title and columns; nothing where nothing was measured."""
    found, nodes = stage_seconds(run), run.resolved["partition"]["stages"]
    if not any(each.seconds for each in found):
        return []
    times = {verb: [each.each(verb) for each in found] for verb in ("forward", "backward", "update")}
    unit = units.SECONDS.column([value for values in times.values() for value in values if value is not None])
    rates = [each.rate(run.resolved["data"]["batch"]) for each in found]
    return [
        (
            "measured",
            [
                text_column("stage", range(1, 1 + len(found))),
                name_column("nodes", map(nodes_label, nodes), _NODES_WIDTH),
                *(number_column(verb, units.SECONDS, values, unit=unit) for verb, values in times.items()),
                text_column("busy", [each.busy for each in found], write=units.percent),
                text_column("samples in a\nbusy second", rates, write=units.PLAIN.text),
            ],
        )
    ]
