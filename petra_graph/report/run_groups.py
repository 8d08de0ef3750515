"""The runs of a folder: as groups of those that differ in their seed alone, and as rows.

Groups are named by what differs, the best first, each metric with its spread. A row is a run's status, how far it came, its best metric, its age,
and what differs.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from math import floor, log10
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from attrs import asdict, evolve, field, frozen

from petra_graph.errors import PetraGraphError, shown
from petra_graph.plugins.loss_and_metric import scales_in
from petra_graph.record.checkpoint import numbers
from petra_graph.record.recorded_run import Best, RecordedRun, began, read_run, run_directories
from petra_graph.record.run_directory import is_locked
from petra_graph.report.metric_text import NO_SCALES, Scales, is_share, value_text
from petra_graph.units import age, bounded, plural

Order = Literal["age", "metric"]

_OWN = ("name", "run.seed", "run.directory")
"""Keys in which repeated runs may differ."""
LONGEST_NAME = 34
"""The longest name of a group: it is written next to a line of a chart."""
_ABSENT = "-"
"""In the place of a value that a specification does not have."""
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
    """Write spreads below one another, all with the same decimals: mean ± deviation."""
    scale, unit = (100.0, " %") if is_share(metric, scales) else (1.0, "")
    decimals = 2 if unit else _count_decimals([spread for spread in spreads if spread])
    texts: list[str | None] = []
    for spread in spreads:
        if spread is None:
            texts.append(None)
            continue
        ends = "" if spread.standard_deviation is None else f" ± {scale * spread.standard_deviation:,.{decimals}f}"
        texts.append(f"{scale * spread.mean:,.{decimals}f}{ends}{unit}")
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
    found: dict[str, list[RecordedRun]] = {}
    for run in runs:
        values = [(key, value) for key, value in sorted(flatten(run.resolved)) if key not in _OWN]
        found.setdefault(json.dumps(values, default=str), []).append(run)
    rows = find_differences([members[0].resolved for members in found.values()], _OWN)
    groups = [
        RunGroup(name="", runs=members, values={key: row[place] for key, row in rows.items()})
        for place, members in enumerate(found.values())
    ]
    groups.sort(key=rank)
    return [evolve(group, name=name) for group, name in zip(groups, _names(groups), strict=True)]


def _names(groups: Sequence[RunGroup]) -> list[str]:
    """Name groups by what differs; where that is long by the keys that tell them apart, or by their specifications' names, or by numbers."""
    of_specs, rows = [group.runs[0].name for group in groups], differences(groups)
    telling: dict[str, list[str]] = {}
    for key, row in rows.items():
        if _count_different([*telling.values(), row]) > _count_different([*telling.values()]):
            telling[key] = row
    for chosen in (rows, telling):
        names = in_words(chosen) if chosen else of_specs
        if max(map(len, names)) <= LONGEST_NAME:
            return names
    if len(set(of_specs)) == len(groups):
        return of_specs
    return [bounded(f"{place}: {name}", LONGEST_NAME) for place, name in enumerate(names, start=1)]


def rank(group: RunGroup) -> tuple[bool, str, float]:
    """Return what groups are sorted by: those with a value first, of one metric together, the best of them first."""
    judged = best_spread(group)
    if judged is None:
        return True, "", 0.0
    metric, spread = judged
    return False, metric, spread.mean if group.bests[0].smallest else -spread.mean


def differences(groups: Sequence[RunGroup]) -> dict[str, list[str]]:
    """Return the keys in which groups differ, each with its values as TOML in the order of groups."""
    return {key: [group.values.get(key, _ABSENT) for group in groups] for key in groups[0].values}


def final_spread(group: RunGroup, metric: str) -> Spread | None:
    """Return the spread of a metric's latest values."""
    values = [value for run in group.by_seed if (value := run.last(metric)) is not None]
    return Spread.of(values) if values else None


def best_spread(group: RunGroup) -> tuple[str, Spread] | None:
    """Return the metric by which the runs are judged, and the spread of their best values."""
    found = group.bests
    return (found[0].metric, Spread.of([best.value for best in found])) if found else None


def find_differences(resolved: Sequence[Mapping[str, Any]], but: Collection[str]) -> dict[str, list[str]]:
    """Return the keys in which specifications, with every default, differ, each with its values as TOML; the keys in `but` do not count.

    Keys that only some have, and the schedule, follow from another name: of a method, or of a plugin. They are left out unless they tell
    apart what the others do not.
    """
    specs = [dict(flatten(each)) for each in resolved]
    keys = dict.fromkeys(key for spec in specs for key in spec if key not in but)
    rows = {key: [shown(spec[key]) if key in spec else _ABSENT for spec in specs] for key in keys}
    rows = {key: row for key, row in rows.items() if len(set(row)) > 1}
    tables = tuple(key.removesuffix("name") for key in rows if key.endswith(".name"))
    derived = [
        key
        for key, row in rows.items()
        if key.startswith(tables)
        and not key.endswith(".name")
        and (_ABSENT in row or (key == "method.schedule" and "method.name" in rows))
    ]
    kept = {key: row for key, row in rows.items() if key not in derived}
    for key in derived:
        if _count_different([*kept.values(), rows[key]]) > _count_different([*kept.values()]):
            kept[key] = rows[key]
    return {key: row for key, row in rows.items() if key in kept}


def _count_different(rows: Sequence[Sequence[str]]) -> int:
    """Return how many specifications these keys' values tell apart."""
    return len(set(zip(*rows, strict=True))) or 1


def flatten(table: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a table's values with their dotted keys; nodes of the graph by their names."""
    for key, value in table.items():
        name = f"{path}{key}"
        if isinstance(value, Mapping):
            yield from flatten(value, f"{name}.")
        elif name == "graph.node":
            for node in value:
                yield from flatten(node, f"{name}.{node.get('name')}.")
        else:
            yield name, value


def in_words(rows: Mapping[str, Sequence[str]]) -> list[str]:
    """Return what differs, as `find_differences` has it, for each specification: "lr=0.1, batch=64"."""
    last = [short_key(key) for key in rows]
    heads = [short if last.count(short) == 1 else key for key, short in zip(rows, last, strict=True)]
    return [
        ", ".join(f"{head}={value.strip(chr(34))}" for head, value in zip(heads, values, strict=True))
        for values in zip(*rows.values(), strict=True)
    ]


def short_key(key: str) -> str:
    """Return the last part of a key that says something: "method" of method.name, "layer.0" of method.keep.layer.0."""
    parts = key.split(".")
    if parts[-1].isdecimal():
        return ".".join(parts[-2:])
    return parts[-2] if parts[-1] == "name" and len(parts) > 1 else parts[-1]


def run_records(folder: Path, order: Order = "age", now: datetime | None = None) -> list[dict[str, Any]]:
    """Return the runs in a folder as JSON: the youngest first, or by "metric" those of one metric and split together, the best first.

    Ages are counted from `now`; None: the present. Runs without a metric are last.

    Raises:
        SpecError: the folder does not exist.
    """
    now = now or datetime.now(UTC)
    found = {directory: _read(directory) for directory in run_directories(folder)}
    records = [_make_record(directory, run, now) for directory, run in found.items()]
    by_name: dict[str, list[RecordedRun]] = {}
    for run in found.values():
        if isinstance(run, RecordedRun):
            by_name.setdefault(run.name, []).append(run)
    for alike in by_name.values():
        rows = find_differences([run.resolved for run in alike], ["run.directory"])
        own = {str(run.directory): {key: row[at] for key, row in rows.items()} for at, run in enumerate(alike)}
        for record in records:
            record["differs"] |= own.get(record["directory"], {})
    records.sort(key=lambda record: (record["age_seconds"], record["run"]))
    if order == "metric":
        records.sort(key=_rank)
    return records


def _rank(record: Mapping[str, Any]) -> tuple[bool, str, float]:
    if (best := record["best"]) is None:
        return True, "", 0.0
    return False, best["metric"], best["value"] if best["smallest"] else -best["value"]


def _read(directory: Path) -> RecordedRun | PetraGraphError | OSError:
    try:
        return read_run(directory)
    except (PetraGraphError, OSError) as error:
        return error


def _make_record(directory: Path, run: RecordedRun | PetraGraphError | OSError, now: datetime) -> dict[str, Any]:
    start = began(directory)
    record: dict[str, Any] = {
        "run": directory.name,
        "directory": str(directory),
        "name": None,
        "status": "damaged",
        "epochs": None,
        "planned_epochs": None,
        "best": None,
        "metrics": {},
        "problem": None,
        "changed": [],
        "differs": {},
        "began": start.isoformat(),
        "age_seconds": round((now - start).total_seconds(), 1),
        "checkpoints": numbers(directory),
    }
    if not isinstance(run, RecordedRun):
        if is_locked(directory):  # between its first files
            return record | {"status": "running"}
        return record | {"problem": run.problems[0].message if isinstance(run, PetraGraphError) else str(run)}
    errors = run.summary.get("error") if run.status == "failed" else None
    return record | {
        "name": run.name,
        "status": run.status,
        "epochs": run.epochs,
        "planned_epochs": run.planned_epochs,
        "best": run.best and asdict(run.best),
        "metrics": {label: asdict(scale) for label, scale in run.scales.items()},
        "problem": errors[0] if errors else None,
        "changed": run.summary.get("changed", []),
    }


def run_rows(records: Sequence[Mapping[str, Any]]) -> list[Sequence[str]]:
    """Return the records as the rows of a table, the heads first."""
    return [
        ("run", "status", "epochs", "best", "age", ""),
        *(
            (
                record["run"],
                record["status"],
                "-" if record["epochs"] is None else f"{record['epochs']}/{record['planned_epochs']}",
                _best(record),
                age(record["age_seconds"]),
                _remarks(record),
            )
            for record in records
        ),
    ]


def _best(record: Mapping[str, Any]) -> str:
    if (best := record["best"]) is None:
        return "-"
    return f"{best['metric']} {value_text(best['metric'], best['value'], scales_in(record['metrics']))}"


def _remarks(record: Mapping[str, Any]) -> str:
    differs = in_words({key: [one] for key, one in record["differs"].items() if not key.startswith("graph.")})
    if any(key.startswith("graph.") for key in record["differs"]):
        differs.append("another network")
    more = [
        ", ".join(filter(None, differs)),
        "changed when resumed" if record["changed"] else "",
        plural(len(record["checkpoints"]), "checkpoint") if record["checkpoints"] else "",
        (record["problem"] or "").partition("\n")[0],
    ]
    return "; ".join(filter(None, more))
