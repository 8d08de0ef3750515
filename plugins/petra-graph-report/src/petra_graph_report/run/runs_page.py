"""The page of several runs: groups that repeat one another except for their seed, over one another and in tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs

from petra_graph.record.recorded_run import RecordedRun
from petra_graph.report.metric_text import chosen_on, final_metrics, metric_text
from petra_graph.report.plan.short_labels import schedule_label
from petra_graph.report.text_tables import Column, name_column, text_column
from petra_graph.units import NOTHING, PLAIN, plural
from petra_graph_report.pages import Part, render_parts
from petra_graph_report.run.run_curves import comparison_charts
from petra_graph_report.run.run_groups import RunGroup, Spread, best_spread, differences, final_spread, group_runs

_NOT_DONE = ("running", "failed", "killed", "interrupted")
_SPREAD = (
    "n seeds of a group, of which the longest, latest run counts: mean ± standard deviation over the seeds; below, the least to the "
    "largest. "
)
_BAND = "A line is the mean over a group's runs, as far as all of them came; its band reaches from the least to the largest."
_WIDE = 60
_VALUE = 48
"""Characters of a key's value: longer ones are cut."""


def runs_page(runs: Sequence[RecordedRun]) -> str:
    """Write several runs as one page."""
    groups = group_runs(runs)
    differing = _differing(groups)
    several = any(len(group.runs) > 1 for group in groups)
    parts = [
        Part(
            name="groups",
            tables=[("", _groups(groups)), *([("what differs between the groups", differing)] if differing else [])],
            note=(_SPREAD if several else "") + "Final values are those of the latest evaluation." + _caveat(runs),
        ),
        Part(name="curves", charts=comparison_charts(groups), note=_BAND if several else ""),
        Part(name="runs", tables=[("", _runs(groups))]),
    ]
    title = f"{plural(len(runs), 'run')} in {plural(len(groups), 'group')}"
    return render_parts(title, parts, about="Runs of one group differ in their seed alone.", state=_under_way(runs))


def _caveat(runs: Sequence[RecordedRun]) -> str:
    caveats = sorted({chosen_on(run.best.metric) for run in runs if run.best is not None} - {""})
    return "".join(f" The best is {caveat}." for caveat in caveats)


def runs_record(runs: Sequence[RecordedRun]) -> dict[str, Any]:
    """Return the comparison as JSON."""
    groups = group_runs(runs)
    return {
        "groups": [
            {
                "group": group.name,
                "runs": [str(run.directory) for run in group.runs],
                "best": None
                if (found := best_spread(group)) is None
                else {"metric": found[0], **attrs.asdict(found[1])},
                "final": {
                    metric: attrs.asdict(spread)
                    for metric in _final_metrics(group.runs)
                    if (spread := final_spread(group, metric))
                },
            }
            for group in groups
        ],
        "differing": {
            key: dict(zip([g.name for g in groups], row, strict=True)) for key, row in differences(groups).items()
        },
    }


def _final_metrics(runs: Iterable[RecordedRun]) -> list[str]:
    return final_metrics(name for run in runs for name in run.metrics)


def _under_way(runs: Sequence[RecordedRun]) -> list[str]:
    """Return what keeps runs from being compared like with like."""
    stopped = {status: [run.directory.name for run in runs if run.status == status] for status in _NOT_DONE}
    notes = [f"{status}: {', '.join(held)}" for status, held in stopped.items() if held]
    return [f"Not all runs are done, and they are compared as far as they came. {'; '.join(notes)}"] if notes else []


def _groups(groups: Sequence[RunGroup]) -> list[Column]:
    metrics = _final_metrics([run for group in groups for run in group.runs])
    found = [best_spread(group) for group in groups]
    judged = {each[0] for each in found if each}
    head = f"best {judged.pop()}" if len(judged) == 1 else "best"
    columns = [
        name_column("group", [group.name for group in groups], _WIDE),
        name_column("name", [", ".join(dict.fromkeys(run.name for run in group.runs)) for group in groups], _WIDE),
        text_column("n", [len(group.by_seed) for group in groups]),
        text_column("seeds", [", ".join(str(run.seed) for run in group.by_seed) for group in groups]),
        text_column(head, [each and each[1].text(each[0], of.scales) for of, each in zip(groups, found, strict=True)]),
    ]
    for metric in metrics:
        cells = [(spread := final_spread(group, metric)) and spread.text(metric, group.scales) for group in groups]
        columns.append(text_column(f"final {metric}", cells))
    rates = [[run.rate for run in group.runs if run.rate] for group in groups]
    texts = [Spread.of(each).text("") if each else None for each in rates]
    return [*columns, text_column("samples a second", texts)]


def _differing(groups: Sequence[RunGroup]) -> list[Column]:
    rows = differences(groups)
    if not rows:
        return []
    columns = [name_column("key", rows, _WIDE)]
    for place, group in enumerate(groups):
        columns.append(name_column(group.name, [row[place] for row in rows.values()], _VALUE))
    return columns


def _runs(groups: Sequence[RunGroup]) -> list[Column]:
    names = [group.name for group in groups for _ in group.runs]
    runs = [run for group in groups for run in group.runs]
    methods = [run.resolved.get("method", {}) for run in runs]
    return [
        name_column("group", names, _WIDE),
        name_column("run", [run.directory.name for run in runs], _WIDE),
        name_column("method", [str(method.get("name", NOTHING)) for method in methods], _WIDE),
        name_column("schedule", [schedule_label(method.get("schedule", NOTHING)) for method in methods], _WIDE),
        text_column("seed", [run.seed for run in runs]),
        name_column("status", [run.status for run in runs], _WIDE),
        text_column("epochs", [f"{run.epochs}/{run.planned_epochs}" for run in runs]),
        text_column("best", [run.best and metric_text(run.best.metric, run.best.value, run.scales) for run in runs]),
        text_column("final", [next(_finals(run), None) for run in runs]),
        text_column("samples\na second", [run.rate for run in runs], write=PLAIN.text),
    ]


def _finals(run: RecordedRun) -> Iterator[str]:
    for metric in final_metrics(run.metrics):
        if (value := run.last(metric)) is not None:
            yield metric_text(metric, value, run.scales)
