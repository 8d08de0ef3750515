"""The runs of a folder: as groups of those that differ in their seed alone, as tables, and as JSON.

Groups are named by what differs, the best first, each metric with its spread.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from math import floor, log10
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal, NamedTuple

from attrs import asdict, field, frozen

from petra_graph.errors import PetraGraphError, shown
from petra_graph.plugins.loss_and_metric import scale_of, scales_in
from petra_graph.record.checkpoint import numbers
from petra_graph.record.recorded_run import RecordedRun, began, grown_bytes, read_run, run_directories
from petra_graph.record.run_directory import is_locked
from petra_graph.report.progress import EVALUATED, NO_SCALES, Scales, final_metrics, value_text
from petra_graph.report.tables import Column, name_column, value_column
from petra_graph.units import bounded, duration, memory, plural

Order = Literal["age", "metric"]

_OWN = ("name", "run.seed", "run.directory")
"""Keys in which repeated runs may differ."""
_LONGEST_NAME = 34
"""The longest name of a group: it is written next to a line of a chart."""
_ABSENT = "-"
"""In the place of a value that a specification does not have."""


# --- groups ---


class Spread(NamedTuple):
    """A number over the seeds of a group."""

    n: int
    mean: float
    standard_deviation: float | None
    """Of the sample; None for a single run."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Return the spread of values, None of none."""
        return cls(len(values), fmean(values), stdev(values) if len(values) > 1 else None) if values else None


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
        return list({run.seed: run for run in sorted(self.runs, key=lambda run: run.epochs)}.values())

    @property
    def judged_by(self) -> str | None:
        """The metric whose best value says how good the runs are; None where none was measured."""
        return next((run.best.metric for run in self.by_seed if run.best), None)

    @property
    def best(self) -> Spread | None:
        """The best evaluation of each seed."""
        return Spread.of([run.best.value for run in self.by_seed if run.best])

    def final(self, metric: str) -> Spread | None:
        """Return the spread of a metric's latest values."""
        return Spread.of([value for run in self.by_seed if (value := run.last(metric)) is not None])


def group_runs(runs: Sequence[RecordedRun]) -> list[RunGroup]:
    """Return the runs that differ in their seed alone together, the best group first, each named by what differs: "lr=0.1"."""
    found: dict[str, list[RecordedRun]] = {}
    for run in runs:
        values = [(key, value) for key, value in sorted(flatten(run.resolved)) if key not in _OWN]
        found.setdefault(json.dumps(values, default=str), []).append(run)
    rows = find_differences([members[0].resolved for members in found.values()], _OWN)
    of_specs = [members[0].name for members in found.values()]
    names = in_words(rows) if rows else of_specs
    if max(map(len, names)) > _LONGEST_NAME:
        numbered = [bounded(f"{place}: {name}", _LONGEST_NAME) for place, name in enumerate(names, start=1)]
        names = of_specs if len(set(of_specs)) == len(of_specs) else numbered
    groups = [
        RunGroup(name=name, runs=members, values={key: row[place] for key, row in rows.items()})
        for place, (name, members) in enumerate(zip(names, found.values(), strict=True))
    ]
    return sorted(groups, key=lambda one: _rank(one.judged_by, one.best.mean if one.best else 0.0, one.scales))


def _rank(metric: str | None, value: float, scales: Scales) -> tuple[bool, str, float]:
    """Return what is sorted by: those with a metric first, of one metric together, the best of them first."""
    sign = 1 if metric is None or scale_of(metric, scales).largest_or_smallest == "smallest" else -1
    return metric is None, metric or "", sign * value


# --- what differs ---


def find_differences(resolved: Sequence[Mapping[str, Any]], but: Collection[str]) -> dict[str, list[str]]:
    """Return the keys in which specifications, with every default, differ, each with its values as TOML; the keys in `but` do not count.

    Keys that only some have, and the schedule, do not count where they follow from another name: of a method, or of a plugin.
    """
    specs = [dict(flatten(each)) for each in resolved]
    keys = dict.fromkeys(key for spec in specs for key in spec if key not in but)
    rows = {key: [shown(spec[key]) if key in spec else _ABSENT for spec in specs] for key in keys}
    rows = {key: row for key, row in rows.items() if len(set(row)) > 1}

    def follows(key: str, row: Sequence[str]) -> bool:
        if _ABSENT not in row and key != "method.schedule":
            return False
        above = (name for name in rows if name.endswith(".name") and key.startswith(name.removesuffix("name")))
        return any(len(set(zip(rows[name], row, strict=True))) == len(set(rows[name])) for name in above if name != key)

    return {key: row for key, row in rows.items() if not follows(key, row)}


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


# --- tables ---


def spread_texts(spreads: Sequence[Spread | None], metric: str, scales: Scales = NO_SCALES) -> list[str | None]:
    """Write spreads below one another, all with the decimals that give the largest mean four digits: mean ± deviation."""
    scale, unit, decimals = 1.0, "", 0
    if scale_of(metric, scales).share:
        scale, unit, decimals = 100.0, " %", 2
    elif largest := max((abs(spread.mean) for spread in spreads if spread), default=0.0):
        decimals = max(0, 3 - floor(log10(largest)))

    def text(spread: Spread) -> str:
        apart = spread.standard_deviation
        ends = "" if apart is None else f" ± {scale * apart:,.{decimals}f}"
        return f"{scale * spread.mean:,.{decimals}f}{ends}{unit}"

    return [None if spread is None else text(spread) for spread in spreads]


def group_columns(groups: Sequence[RunGroup]) -> list[Column]:
    """Return the groups with the metric that judges the best one, their final metrics, speed and memory."""
    scales = {label: scale for group in groups for label, scale in group.scales.items()}
    metric, columns = groups[0].judged_by or "", [name_column("group", [group.name for group in groups])]
    columns.append(value_column("runs", [len(group.runs) for group in groups]))
    spreads = {f"best\n{metric}": (metric, [one.best if one.judged_by == metric else None for one in groups])}
    for name in final_metrics(name for group in groups for run in group.runs for name in run.metrics):
        spreads[f"final\n{name}"] = name, [group.final(name) for group in groups]
    rates = [Spread.of([run.rate for run in group.runs if run.rate]) for group in groups]
    spreads["samples\na second"] = "", rates
    columns += [
        value_column(head, spread_texts(each, name, scales)) for head, (name, each) in spreads.items() if any(each)
    ]
    held = [max(sum(map(grown_bytes, run.processes)) for run in group.runs) or None for group in groups]
    return columns + [value_column("memory\nmeasured", held, memory)] * any(held)


# --- the list of a folder ---


def run_record(directory: Path, run: RecordedRun | None, *, now: datetime | None = None, **more: Any) -> dict[str, Any]:
    """Return a run as a list of runs has it, in JSON's types; what is not known of one that cannot be read is null.

    Args:
        now: from which its age is counted; None: the present.
        more: other values than the run's own: `status`, `problem`, and `differs`, what it has of the keys in which runs of its name differ, as TOML.
    """
    start, failed = began(directory), run is not None and run.status == "failed"
    latest = [name for name in run.metrics if name.startswith(("train/", *EVALUATED))] if run else []
    return {
        "run": directory.name,
        "directory": str(directory),
        "began": start.isoformat(),
        "age_seconds": round(((now or datetime.now(UTC)) - start).total_seconds(), 1),
        "checkpoints": numbers(directory),
        **{key: getattr(run, key, None) for key in ("name", "seed", "epochs", "planned_epochs", "status")},
        "problem": next(iter(run.summary.get("error", [])), None) if run and failed else None,
        "best": run and run.best and asdict(run.best),
        "samples_per_second": run and run.rate,
        "final": {name: run.last(name) for name in latest} if run else {},
        "metrics": {label: asdict(scale) for label, scale in run.scales.items()} if run else {},
        "differs": {},
        **more,
    }


def run_row(record: Mapping[str, Any]) -> dict[str, str]:
    """Return what `run_record` has returned as the row of a table, by its heads."""
    best, differs, checkpoints = record["best"], record["differs"], len(record["checkpoints"])
    words = in_words({key: [one] for key, one in differs.items() if not key.startswith("graph.")})
    words += ["another network"] * any(key.startswith("graph.") for key in differs)
    remarks = [
        ", ".join(filter(None, words)),
        plural(checkpoints, "checkpoint") if checkpoints else "",
        (record["problem"] or "").partition("\n")[0],
    ]
    scales = scales_in(record["metrics"])
    return {
        "run": record["run"],
        "status": record["status"],
        "epochs": "-" if record["epochs"] is None else f"{record['epochs']}/{record['planned_epochs']}",
        "best": f"{best['metric']} {value_text(best['metric'], best['value'], scales)}" if best else "-",
        "age": duration(round(record["age_seconds"])),
        "": "; ".join(filter(None, remarks)),
    }


def list_runs(folder: Path, order: Order = "age", now: datetime | None = None) -> list[dict[str, Any]]:
    """Return the records of the runs in a folder: the youngest first, or by "metric" those of one metric and split together, the best first.

    Runs without a metric are last.

    Raises SpecError: the folder does not exist.
    """
    found = list[dict[str, Any]]()
    by_name: dict[str, list[RecordedRun]] = {}
    for directory in run_directories(folder):
        try:
            run = read_run(directory)
            by_name.setdefault(run.name, []).append(run)
        except (PetraGraphError, OSError) as error:
            reason = error.problems[0].message if isinstance(error, PetraGraphError) else str(error)
            # A process that holds the lock is between its first files.
            status, problem = ("running", None) if is_locked(directory) else ("damaged", reason)
            found.append(run_record(directory, None, now=now, status=status, problem=problem))
    for alike in by_name.values():
        rows = find_differences([run.resolved for run in alike], ["run.directory"])
        for at, run in enumerate(alike):
            differs = {key: row[at] for key, row in rows.items()}
            found.append(run_record(run.directory, run, now=now, differs=differs))

    def rank(record: Mapping[str, Any]) -> tuple[bool, str, float]:
        best = record["best"] or {"metric": None, "value": 0.0}
        return _rank(best["metric"], best["value"], scales_in(record["metrics"]))

    found.sort(key=lambda one: (-datetime.fromisoformat(one["began"]).timestamp(), one["run"]))
    return sorted(found, key=rank) if order == "metric" else found
