"""A sweep's results: of each group the mean and the spread over its seeds, the best first."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill

from attrs import frozen

from petra_graph.record.recorded_run import RecordedRun
from petra_graph.report.metric_text import chosen_on
from petra_graph.report.run_groups import RunGroup, best_spread, final_spread, rank, spread_texts
from petra_graph.report.tables import Column, name_column, render, tables, value_column
from petra_graph.units import plural
from petra_graph_studies.sweeping.sweep_folder import Sweep

_LOSSES = ("test/loss", "train/loss")
"""The metrics that are shown beside the one that decides; the page has all."""
_WIDE = 40
"""Characters of a combination: longer ones are cut."""


@frozen(kw_only=True)
class Result:
    """A group of a sweep: the runs of one combination that are done."""

    group: RunGroup
    planned: int
    """How many runs it has when all are done."""


def results(sweep: Sweep) -> list[Result]:
    """Return the groups of a sweep, the best first; those without a value last."""
    runs: dict[str, list[RecordedRun]] = {}
    planned: dict[str, int] = {}
    for member in sweep.members:
        name = member.combination.group_words
        planned[name] = planned.get(name, 0) + 1
        done = member.recorded() if member.status() == "done" else None
        runs.setdefault(name, []).extend([done] if done is not None else [])
    found = [Result(group=RunGroup(name=name, runs=held), planned=planned[name]) for name, held in runs.items()]
    return sorted(found, key=lambda result: rank(result.group))


def sweep_table(sweep: Sweep, width: int) -> str:
    """Write the results as a table, which a line says how to read."""
    found = results(sweep)
    groups = [result.group for result in found]
    runs = [run for group in groups for run in group.runs]
    if not runs:
        return "no run is done\n"
    columns = [
        name_column("combination", [group.name for group in groups], _WIDE),
        Column(head="runs", cells=[_count_runs(result) for result in found]),
    ]
    judged = best_spread(groups[0])
    if judged is not None:
        columns.append(_spread_column(f"best {judged[0]}", groups, judged[0], of_best=True))
    split, _, name = ("", "", "") if judged is None else judged[0].partition("/")
    shown = (f"test/{name}", *_LOSSES) if split == "validation" else _LOSSES
    columns += [
        _spread_column(f"final {metric}", groups, metric, of_best=False)
        for metric in dict.fromkeys(shown)
        if any(metric in run.metrics for run in runs)
    ]
    text = render(tables(columns, width), width=width)
    return text + ("" if judged is None else f"\n{fill(_how_to_read(judged[0], runs), width)}\n")


def _how_to_read(metric: str, runs: Sequence[RecordedRun]) -> str:
    one = next(run.best for run in runs if run.best is not None)
    which = "smallest" if one.smallest else "largest"
    spread = ", mean and standard deviation over the seeds" if len({run.seed for run in runs}) > 1 else ""
    return f"The best is first, by {metric}: the {which} value of each run's evaluations{spread}; {chosen_on(metric)}."


def _count_runs(result: Result) -> str:
    done = len(result.group.runs)
    return str(done) if done == result.planned else f"{done} of {result.planned}"


def _spread_column(head: str, groups: Sequence[RunGroup], metric: str, *, of_best: bool) -> Column:
    """Return the column of means with deviations."""
    spreads = [
        (found := best_spread(group)) and found[1] if of_best else final_spread(group, metric) for group in groups
    ]
    return value_column(head, spread_texts(spreads, metric, groups[0].scales))


def count_statuses(statuses: Sequence[str]) -> str:
    """Write how many runs have each status: "7 done, 2 running, 3 waiting"."""
    known = ("done", "running", "interrupted", "killed", "failed", "damaged", "waiting")
    words = [f"{statuses.count(status)} {status}" for status in known if status in statuses]
    return f"{plural(len(statuses), 'run')}: {', '.join(words)}"
