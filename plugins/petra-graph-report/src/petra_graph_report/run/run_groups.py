"""Runs that repeat one another except for their seed, as groups: what differs between groups, and each metric's spread in one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from attrs import evolve, frozen

from petra_graph.record.recorded_run import RecordedRun
from petra_graph.report.metric_text import NO_SCALES, Scales, is_share
from petra_graph.report.run.spec_differences import find_differences, flatten, in_words

_OWN = ("name", "run.seed", "run.directory")
"""Keys in which repeated runs may differ."""
_LONGEST_NAME = 20
"""The longest name of a group: it is written next to a line of a chart."""
_WHOLE = 100
"""Deviations from here on have no decimals, and neither have numbers ten times as large."""
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@frozen(kw_only=True)
class RunGroup:
    """Runs that differ in their seed alone: one line of a chart."""

    name: str
    runs: Sequence[RecordedRun]

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

    def text(self, metric: str, scales: Scales = NO_SCALES) -> str:
        """Write the mean with its deviation, and the least and the largest value in a second line."""
        scale, unit = (100.0, " %") if is_share(metric, scales) else (1.0, "")
        mean = f"{_number(scale * self.mean, unit)}{unit}"
        if self.standard_deviation is None:
            return mean
        ends = f"{_number(scale * self.least, unit)} to {_number(scale * self.largest, unit)}"
        deviation = scale * self.standard_deviation
        around = f"{deviation:,.0f}" if deviation >= _WHOLE else f"{deviation:.2g}"
        return f"{mean.removesuffix(unit)} ± {around}{unit}\n{ends}"


def _number(value: float, unit: str) -> str:
    """Write a percentage with two decimals, another number with four digits."""
    if unit:
        return f"{value:.2f}"
    return f"{value:,.0f}" if abs(value) >= 10 * _WHOLE else f"{value:.4g}"


def group_runs(runs: Sequence[RecordedRun]) -> list[RunGroup]:
    """Return the runs that differ in their seed alone together, in the order of their first runs.

    A group's name is what differs from the other groups, as in "lr=0.1", or a letter where that is too long.
    """
    found: dict[str, list[RecordedRun]] = {}
    for run in runs:
        found.setdefault(_identity(run.resolved), []).append(run)
    groups = [RunGroup(name=letter(place), runs=members) for place, members in enumerate(found.values())]
    names = in_words(_leave_out_derived(differences(groups)))
    if not names or max(map(len, names)) > _LONGEST_NAME:
        return groups
    return [evolve(group, name=name) for group, name in zip(groups, names, strict=True)]


def _leave_out_derived(rows: Mapping[str, Sequence[str]]) -> Mapping[str, Sequence[str]]:
    """Return the rows without keys that another method or plugin brings with it, where the others tell groups apart."""
    named = {key.removesuffix("name") for key in rows if key.endswith(".name")}
    fewer = {key: row for key, row in rows.items() if key.endswith(".name") or not key.startswith(tuple(named))}
    columns = [len(set(zip(*each.values(), strict=True))) for each in (fewer, rows)]
    return fewer if columns[0] == columns[1] else rows


def letter(place: int) -> str:
    """Return A for 0, Z for 25, A2 for 26."""
    round_, at = divmod(place, len(_LETTERS))
    return _LETTERS[at] + (str(round_ + 1) if round_ else "")


def differences(groups: Sequence[RunGroup]) -> dict[str, list[str]]:
    """Return the keys in which groups differ, each with its values as TOML in the order of groups; "-" where it is absent."""
    return find_differences([group.runs[0].resolved for group in groups], _OWN)


def final_spread(group: RunGroup, metric: str) -> Spread | None:
    """Return the spread of a metric's latest values."""
    values = [value for run in group.by_seed if (value := run.last(metric)) is not None]
    return Spread.of(values) if values else None


def best_spread(group: RunGroup) -> tuple[str, Spread] | None:
    """Return the metric by which the runs are judged, and the spread of their best values."""
    found = [run.best for run in group.by_seed if run.best is not None]
    return (found[0].metric, Spread.of([best.value for best in found])) if found else None


def _identity(resolved: Mapping[str, Any]) -> str:
    return json.dumps([(key, value) for key, value in sorted(flatten(resolved)) if key not in _OWN], default=str)
