"""Runs that repeat one another except for their seed, as groups: named by what differs, the best first, each metric with its spread."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import floor, log10
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from attrs import evolve, field, frozen

from petra_graph.errors import PetraGraphError, shown
from petra_graph.record.run_files import read_json
from petra_graph.record.run_folders import SWEEP
from petra_graph.report.metric_text import NO_SCALES, Scales
from petra_graph.spec.overrides import parse_override
from petra_graph.units import bounded
from petra_graph_report.run.metric_values import is_share
from petra_graph_report.run.recorded_run import Best, RecordedRun
from petra_graph_report.run.spec_differences import ABSENT, count_different, find_differences, flatten, in_words

_SEED = "run.seed"
_OWN = ("name", _SEED, "run.directory")
"""Keys in which repeated runs may differ."""
LONGEST_NAME = 34
"""The longest name of a group: it is written next to a line of a chart."""
_MOST_DECIMALS = 8


@frozen(kw_only=True)
class RunGroup:
    """Runs that differ in their seed alone: one line of a chart."""

    name: str
    runs: Sequence[RecordedRun]
    values: Mapping[str, str] = field(factory=dict)
    """What it has of the keys in which the groups differ, as TOML."""

    @property
    def scales(self) -> Scales:
        """How the values of their metrics are read."""
        return {label: scale for run in self.runs for label, scale in run.scales.items()}

    @property
    def by_seed(self) -> Sequence[RecordedRun]:
        """One run for each seed: the one that came furthest, of equals the latest; a repetition has the same bits."""
        chosen: dict[int, RecordedRun] = {}
        for run in self.runs:
            if run.seed not in chosen or run.epochs >= chosen[run.seed].epochs:
                chosen[run.seed] = run
        return list(chosen.values())

    @property
    def bests(self) -> Sequence[Best]:
        """The best evaluation of each seed."""
        return [run.best for run in self.by_seed if run.best is not None]


@frozen(kw_only=True)
class Spread:
    """A number over the seeds of a group."""

    n: int
    mean: float
    standard_deviation: float | None
    """The standard deviation of the sample; None for a single run."""
    least: float
    largest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of at least one value."""
        deviation = stdev(values) if len(values) > 1 else None
        return cls(
            n=len(values), mean=fmean(values), standard_deviation=deviation, least=min(values), largest=max(values)
        )


def spread_texts(spreads: Sequence[Spread | None], metric: str, scales: Scales = NO_SCALES) -> list[str | None]:
    """Write spreads below one another, all with the same decimals: mean ± deviation, and in a second line the least and the largest value."""
    scale, unit = (100.0, " %") if is_share(metric, scales) else (1.0, "")
    decimals = 2 if unit else _count_decimals([spread for spread in spreads if spread])

    def write(value: float) -> str:
        return f"{scale * value:,.{decimals}f}"

    texts: list[str | None] = []
    for spread in spreads:
        if spread is None:
            texts.append(None)
        elif spread.standard_deviation is None:
            texts.append(f"{write(spread.mean)}{unit}")
        else:
            ends = f"{write(spread.least)} to {write(spread.largest)}"
            texts.append(f"{write(spread.mean)} ± {write(spread.standard_deviation)}{unit}\n{ends}")
    return texts


def _count_decimals(spreads: Sequence[Spread]) -> int:
    """Return the decimals with which the largest mean has four digits, and the smallest deviation at most two."""
    largest = max((abs(spread.mean) for spread in spreads), default=0.0)
    deviations = [spread.standard_deviation for spread in spreads if spread.standard_deviation]
    by_mean = 3 - floor(log10(largest)) if largest else 2
    by_deviation = 1 - floor(log10(min(deviations))) if deviations else by_mean
    return max(0, min(by_mean, by_deviation, _MOST_DECIMALS))


def group_runs(runs: Sequence[RecordedRun]) -> list[RunGroup]:
    """Return the runs that differ in their seed alone together, the best group first, each named by what differs: "lr=0.1"."""
    swept = _swept_values(runs)
    found: dict[str, list[RecordedRun]] = {}
    for place, run in enumerate(runs):
        identity = json.dumps(swept[place]) if swept else _identity(run.resolved)
        found.setdefault(identity, []).append(run)
    if swept:
        each = [dict(json.loads(identity)) for identity in found]
        rows = {key: [values[key] for values in each] for key in each[0]}
        rows = {key: row for key, row in rows.items() if len(set(row)) > 1}
    else:
        rows = find_differences([members[0].resolved for members in found.values()], _OWN)
    groups = [
        RunGroup(name="", runs=members, values={key: row[place] for key, row in rows.items()})
        for place, members in enumerate(found.values())
    ]
    groups.sort(key=rank)
    return [evolve(group, name=name) for group, name in zip(groups, _name_groups(groups), strict=True)]


def rank(group: RunGroup) -> tuple[bool, str, float]:
    """Return what groups are sorted by: those with a value first, of one metric together, the best of them first."""
    judged = best_spread(group)
    if judged is None:
        return True, "", 0.0
    metric, spread = judged
    return False, metric, spread.mean if group.bests[0].smallest else -spread.mean


def _swept_values(runs: Sequence[RecordedRun]) -> list[dict[str, str]]:
    """Return what each run has of the values that its sweep gave, without its seed; [] if the runs are not of one sweep."""
    members = _sweep_members(runs)
    with suppress(PetraGraphError, KeyError, TypeError):
        given = [map(parse_override, members[_folder(run)]["overrides"]) for run in runs]
        values = [{".".join(one.keys): shown(one.value) for one in overrides} for overrides in given]
        return [{key: value for key, value in each.items() if key != _SEED} for each in values]
    return []


def absent_members(runs: Sequence[RecordedRun]) -> list[str]:
    """Return what sets apart each run of a sweep that is not among these, in words; [] if they are not of one sweep."""
    there = {_folder(run) for run in runs}
    return [str(one.get("words", folder)) for folder, one in _sweep_members(runs).items() if folder not in there]


def _sweep_members(runs: Sequence[RecordedRun]) -> Mapping[str, Mapping[str, Any]]:
    """Return what a sweep has noted of its runs, by their folders; {} if these are not of one sweep, or its file is damaged."""
    folders = {run.directory.resolve().parent.parent for run in runs}
    with suppress(PetraGraphError, KeyError, TypeError):
        folder = folders.pop() if len(folders) == 1 else Path()
        return {one["folder"]: dict(one) for one in (read_json(folder / SWEEP, dict) or {})["members"]}
    return {}


def _folder(run: RecordedRun) -> str:
    return run.directory.resolve().parent.name


def _name_groups(groups: Sequence[RunGroup]) -> list[str]:
    """Name groups by what differs: by all of it, or by as many keys as there is room for, those first that tell the groups apart."""
    of_specs, rows = [group.runs[0].name for group in groups], differences(groups)
    if not rows:
        return of_specs
    telling: dict[str, Sequence[str]] = {}
    for key, row in rows.items():
        if not telling or count_different({**telling, key: row}) > count_different(telling):
            telling[key] = row
    chosen: dict[str, Sequence[str]] = dict(telling)
    for key in rows:
        more: dict[str, Sequence[str]] = {name: rows[name] for name in rows if name in chosen or name == key}
        if _longest(in_words(more)) <= LONGEST_NAME:
            chosen = more
    names = in_words(chosen)
    if _longest(names) <= LONGEST_NAME:
        return names
    if len(set(of_specs)) == len(groups):
        return of_specs
    return [bounded(f"{place}: {name}", LONGEST_NAME) for place, name in enumerate(names, start=1)]


def _longest(names: Sequence[str]) -> int:
    return max(map(len, names))


def differences(groups: Sequence[RunGroup]) -> dict[str, list[str]]:
    """Return the keys in which groups differ, each with its values as TOML in the order of groups."""
    return {key: [group.values.get(key, ABSENT) for group in groups] for key in groups[0].values}


def final_spread(group: RunGroup, metric: str) -> Spread | None:
    """Return the spread of a metric's latest values."""
    values = [value for run in group.by_seed if (value := run.last(metric)) is not None]
    return Spread.of(values) if values else None


def best_spread(group: RunGroup) -> tuple[str, Spread] | None:
    """Return the metric by which the runs are judged, and the spread of their best values."""
    found = group.bests
    return (found[0].metric, Spread.of([best.value for best in found])) if found else None


def _identity(resolved: Mapping[str, Any]) -> str:
    return json.dumps([(key, value) for key, value in sorted(flatten(resolved)) if key not in _OWN], default=str)
