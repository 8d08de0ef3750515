"""The page of several runs: groups that repeat one another except for their seed, over one another and in tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs
from attrs import evolve

from petra_graph.report.metric_text import chosen_on
from petra_graph.report.plan.plan_answers import Answer
from petra_graph.report.plan.short_labels import schedule_label
from petra_graph.report.text_tables import Column, name_column, text_column
from petra_graph.units import NOTHING, PLAIN, left_out, listed, plural
from petra_graph_report.pages import Part, render_parts
from petra_graph_report.run.metric_values import FIRST, final_metrics, metric_text, value_text
from petra_graph_report.run.recorded_run import RecordedRun
from petra_graph_report.run.run_curves import comparison_charts
from petra_graph_report.run.run_groups import (
    RunGroup,
    Spread,
    absent_members,
    best_spread,
    differences,
    final_spread,
    group_runs,
    spread_texts,
)
from petra_graph_report.run.spec_differences import in_words, short_key
from petra_graph_report.run.swept_keys import bars_of_names, best_metric, charts_of_numbers

_NOT_DONE = ("running", "failed", "killed", "interrupted")
_SPREAD = (
    "A value is the mean ± standard deviation over a group's seeds, and below it the least and the largest. Of several runs with one seed "
    "the longest counts, and of these the latest. "
)
_BAND = "A line is the mean over a group's runs, as far as all of them came; its band reaches from the least to the largest. "
_FEW_SEEDS = 2
"""Of two groups, with which a third of pairs that are alike are further apart than their deviation."""
_WIDE = 60
_VALUE = 48
"""Characters of a key's value: longer ones are cut."""
_LISTED = 6
"""Runs of a sweep that are named although the page has nothing of them, as they have not begun."""
_MOST_CURVES = 8
"""Groups whose curves are drawn over one another: the best ones."""


def runs_page(runs: Sequence[RecordedRun]) -> str:
    """Write several runs as one page: which group is the best and by how much, the metric against what differs, curves, and all runs."""
    groups = group_runs(runs)
    several = any(len(group.runs) > 1 for group in groups)
    unnamed = _differing(groups) if in_words(differences(groups)) != [group.name for group in groups] else []
    curves = (_BAND if several else "") + (
        f"Only the {_MOST_CURVES} best of {len(groups)} groups." if len(groups) > _MOST_CURVES else ""
    )
    parts = [
        Part(name="what differs", charts=[*charts_of_numbers(groups), *bars_of_names(groups)]),
        Part(
            name="groups",
            tables=[("", _groups(groups)), *([("what differs between the groups", unnamed)] if unnamed else [])],
            note="The best is first. "
            + (_SPREAD if several else "")
            + "Final values are those of the latest evaluation.",
        ),
        Part(name="curves", charts=comparison_charts(groups[:_MOST_CURVES]), note=curves),
        Part(name="runs", tables=[("", _runs(groups))]),
    ]
    keys = " and ".join(short_key(key) for key in differences(groups))
    over = f" over {keys}" if 0 < len(keys) <= _WIDE else ""
    title = f"{', '.join(dict.fromkeys(run.name for run in runs))}: {plural(len(runs), 'run')}{over}"
    data = dict.fromkeys(str(run.resolved.get("data", {}).get("name", NOTHING)) for run in runs)
    about = (
        f"{plural(len(groups), 'group')} of runs, which differ in their seed alone within a group. "
        f"The data: {listed([*data])}."
    )
    return render_parts(title, parts, about=about, answers=list(_answers(groups)), state=_under_way(runs))


def _answers(groups: Sequence[RunGroup]) -> Iterator[Answer]:
    """Yield which group is the best, whether the next one is worse by more than chance, and what has chosen it."""
    judged = [
        (group, found[1]) for group in groups if (found := best_spread(group)) and found[0] == best_metric(groups)
    ]
    if not judged:
        return
    best, spread = judged[0]
    metric, one = best_metric(groups), best.bests[0]
    texts = [
        (text or "").replace("\n", "; ") for text in spread_texts([each for _, each in judged], metric, best.scales)
    ]
    yield Answer("best", best.name, (f"{metric} {texts[0]}", f"over {plural(spread.n, 'seed')}"))
    if len(judged) > 1:
        second, other = judged[1]
        yield Answer("next", second.name, (f"{metric} {texts[1]}", _apart(spread, other)))
    if tested := [] if metric.startswith("test/") else list(_tested(best)):
        yield Answer("its test", ", ".join(tested), (_weights(best),))
    which = "smallest" if one.smallest else "largest"
    yield Answer("judged by", metric, (f"the {which} value of each run's evaluations", chosen_on(metric)))


def _tested(group: RunGroup) -> Iterator[str]:
    """Yield what the test samples say of a group: its top1, or else its loss."""
    metric = next((metric for metric in FIRST if metric.startswith("test/") and final_spread(group, metric)), "")
    for text in spread_texts([final_spread(group, metric)], metric, group.scales):
        if text:
            yield f"{metric} {text}".replace("\n", "; ")


def _weights(group: RunGroup) -> str:
    """Say with which weights a group was tested."""
    found = {(run.summary.get("test_weights") or {}).get("weights", "last") for run in group.runs}
    return f"with the {listed(sorted(found))} weights of each run"


def _apart(best: Spread, other: Spread) -> str:
    """Say whether two means are further apart than their seeds are."""
    deviations = [each.standard_deviation for each in (best, other) if each.standard_deviation is not None]
    if not deviations:
        return "a single seed does not say whether that is more than chance: `--seeds 3`"
    if abs(best.mean - other.mean) > max(deviations):
        few = "" if min(best.n, other.n) > _FEW_SEEDS else ", of which two are too few to rule out chance: `--seeds 5`"
        return f"further apart than a standard deviation over the seeds{few}"
    return "less apart than a standard deviation over the seeds: it may be chance"


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
    texts = [f"Not all runs are done, and they are compared as far as they came. {'; '.join(notes)}"] if notes else []
    if absent := absent_members(runs):
        rest = [left_out(len(absent) - _LISTED)] if len(absent) > _LISTED else []
        texts.append(f"Not on this page, of the same sweep: {'; '.join([*absent[:_LISTED], *rest])}")
    return texts


def _groups(groups: Sequence[RunGroup]) -> list[Column]:
    found = [best_spread(group) for group in groups]
    metric, scales = best_metric(groups), groups[0].scales
    names = [", ".join(dict.fromkeys(run.name for run in group.runs)) for group in groups]
    columns = [
        name_column("group", [group.name for group in groups], _WIDE),
        text_column(
            _head(f"best {metric}"),
            spread_texts([each[1] if each and each[0] == metric else None for each in found], metric, scales),
        ),
        text_column("seeds", [", ".join(str(run.seed) for run in group.by_seed) for group in groups]),
        *(
            [name_column("name", names, _WIDE)]
            if len(set(names)) > 1 and names != [group.name for group in groups]
            else []
        ),
    ]
    for name in _final_metrics([run for group in groups for run in group.runs]):
        spreads = [final_spread(group, name) for group in groups]
        texts = spread_texts(spreads, name, scales)
        if name != metric or texts != list(columns[1].cells):
            columns.append(text_column(_head(f"final {name}"), texts))
    rates = [[run.rate for run in group.runs if run.rate] for group in groups]
    columns.append(
        text_column("samples\na second", spread_texts([Spread.of(each) if each else None for each in rates], ""))
    )
    styles = ["bold green" if place == 0 and found[0] and len(groups) > 1 else "" for place in range(len(groups))]
    return [evolve(column, styles=styles) for column in columns[:2]] + columns[2:]


def _head(text: str) -> str:
    """Return the head of a column of values: what they are of, in a line, and the metric in two."""
    return text.replace(" ", "\n", 1).replace("/", "/\n", 1)


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
        *_values("best", [(run.best.metric, run.best.value) if run.best else None for run in runs], runs),
        *_values("final", [_final(run) for run in runs], runs),
        text_column("samples\na second", [run.rate for run in runs], write=PLAIN.text),
    ]


def _values(word: str, found: Sequence[tuple[str, float] | None], runs: Sequence[RecordedRun]) -> Iterator[Column]:
    """Yield the column of each run's value; its head says the metric, or, where runs have several, each cell."""
    metrics = {each[0] for each in found if each}
    write, head = (value_text, _head(f"{word} {metrics.pop()}")) if len(metrics) == 1 else (metric_text, word)
    yield text_column(head, [each and write(*each, run.scales) for each, run in zip(found, runs, strict=True)])


def _final(run: RecordedRun) -> tuple[str, float] | None:
    """Return the metric that says how a run ended, of the test samples where they were evaluated, and its value."""
    names = sorted(final_metrics(run.metrics), key=lambda name: not name.startswith("test/"))
    return next(((name, value) for name in names if (value := run.last(name)) is not None), None)
