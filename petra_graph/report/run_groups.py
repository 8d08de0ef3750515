"""The runs of a folder: as groups of those that differ in their seed alone, as tables, and as JSON.

Groups are named by what differs, the best first, each metric with its spread.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from math import floor, log10
from operator import itemgetter
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from attrs import asdict, evolve, field, frozen

from petra_graph.errors import PetraGraphError, shown
from petra_graph.plugins.loss_and_metric import scales_in
from petra_graph.record.checkpoint import numbers
from petra_graph.record.recorded_run import RecordedRun, began, read_run, run_directories
from petra_graph.record.run_directory import is_locked
from petra_graph.report.metric_text import NO_SCALES, Scales, final_metrics, is_share, value_text
from petra_graph.report.tables import Column, name_column, value_column
from petra_graph.units import age, bounded, plural

Order = Literal["age", "metric"]

_OWN = ("name", "run.seed", "run.directory")
"""Keys in which repeated runs may differ."""
LONGEST_NAME = 34
"""The longest name of a group: it is written next to a line of a chart."""
_ABSENT = "-"
"""In the place of a value that a specification does not have."""


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
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Return the spread of values, None of none."""
        if not values:
            return None
        deviation = stdev(values) if len(values) > 1 else None
        return cls(
            n=len(values), mean=fmean(values), standard_deviation=deviation, least=min(values), largest=max(values)
        )


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
    def judged_by(self) -> str | None:
        """The metric whose best value says how good the runs are; None where none was measured."""
        return next((run.best.metric for run in self.by_seed if run.best), None)

    @property
    def judged_by_smallest(self) -> bool:
        return any(run.best.smallest for run in self.by_seed if run.best)

    @property
    def best(self) -> Spread | None:
        """The best evaluation of each seed."""
        return Spread.of([run.best.value for run in self.by_seed if run.best])

    def final(self, metric: str) -> Spread | None:
        """Return the spread of a metric's latest values."""
        return Spread.of([value for run in self.by_seed if (value := run.last(metric)) is not None])


def spread_texts(spreads: Sequence[Spread | None], metric: str, scales: Scales = NO_SCALES) -> list[str | None]:
    """Write spreads below one another, all with the decimals that give the largest mean four digits: mean ± deviation."""
    scale, unit, decimals = 1.0, "", 0
    if is_share(metric, scales):
        scale, unit, decimals = 100.0, " %", 2
    elif largest := max((abs(spread.mean) for spread in spreads if spread), default=0.0):
        decimals = max(0, 3 - floor(log10(largest)))
    texts: list[str | None] = []
    for spread in spreads:
        if spread is None:
            texts.append(None)
            continue
        apart = spread.standard_deviation
        ends = "" if apart is None else f" ± {scale * apart:,.{decimals}f}"
        texts.append(f"{scale * spread.mean:,.{decimals}f}{ends}{unit}")
    return texts


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
    groups.sort(
        key=lambda one: _rank(one.judged_by, one.best.mean if one.best else None, smallest=one.judged_by_smallest)
    )
    return [evolve(group, name=name) for group, name in zip(groups, _names(groups), strict=True)]


def _rank(metric: str | None, value: float | None, *, smallest: bool) -> tuple[bool, str, float]:
    """Return what is sorted by: those with a value first, of one metric together, the best of them first."""
    return value is None, metric or "", (value or 0.0) if smallest else -(value or 0.0)


def _names(groups: Sequence[RunGroup]) -> list[str]:
    """Name groups by what differs; where that is long by the keys that tell them apart, or by their specifications' names, or by numbers."""
    of_specs, rows = [group.runs[0].name for group in groups], differences(groups)
    telling: dict[str, list[str]] = {}
    for key, row in rows.items():
        if _tells_more(telling, row):
            telling[key] = row
    for chosen in (rows, telling):
        names = in_words(chosen) if chosen else of_specs
        if max(map(len, names)) <= LONGEST_NAME:
            return names
    if len(set(of_specs)) == len(groups):
        return of_specs
    return [bounded(f"{place}: {name}", LONGEST_NAME) for place, name in enumerate(names, start=1)]


def differences(groups: Sequence[RunGroup]) -> dict[str, list[str]]:
    """Return the keys in which groups differ, each with its values as TOML in the order of groups."""
    return {key: [group.values.get(key, _ABSENT) for group in groups] for key in groups[0].values}


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

    def follows(key: str) -> bool:
        of_name = key.startswith(tables) and not key.endswith(".name")
        return of_name and (_ABSENT in rows[key] or (key == "method.schedule" and "method.name" in rows))

    kept: dict[str, list[str]] = {}
    for key in sorted(rows, key=follows):
        if not follows(key) or _tells_more(kept, rows[key]):
            kept[key] = rows[key]
    return {key: row for key, row in rows.items() if key in kept}


def _tells_more(known: Mapping[str, Sequence[str]], row: Sequence[str]) -> bool:
    """Whether a key's values tell specifications apart that those of the `known` keys do not."""
    return len(set(zip(*known.values(), row, strict=True))) > max(1, len(set(zip(*known.values(), strict=True))))


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


def group_columns(groups: Sequence[RunGroup]) -> list[Column]:
    """Return the groups, the best first, with the metric that judges the best one, and their final metrics."""
    scales = {label: scale for group in groups for label, scale in group.scales.items()}
    metric = groups[0].judged_by or ""
    bests = [group.best if group.judged_by == metric else None for group in groups]
    finals = final_metrics(name for group in groups for run in group.runs for name in run.metrics)
    rates = [Spread.of([run.rate for run in group.runs if run.rate]) for group in groups]
    styles = ["bold green" if place == 0 and bests[0] and len(groups) > 1 else "" for place in range(len(groups))]
    return [
        name_column("group", [group.name for group in groups], styles=styles),
        value_column("runs", [len(group.runs) for group in groups]),
        *([value_column(f"best\n{metric}", spread_texts(bests, metric, scales))] if any(bests) else []),
        *(
            value_column(f"final\n{name}", spread_texts([group.final(name) for group in groups], name, scales))
            for name in finals
        ),
        value_column("samples\na second", spread_texts(rates, "")),
    ]


def run_records(folder: Path, order: Order = "age", now: datetime | None = None) -> list[dict[str, Any]]:
    """Return the runs in a folder as JSON: the youngest first, or by "metric" those of one metric and split together, the best first.

    Ages are counted from `now`; None: the present. Runs without a metric are last.

    Raises:
        SpecError: the folder does not exist.
    """
    found: dict[Path, RecordedRun | Exception] = {}
    for directory in run_directories(folder):
        try:
            found[directory] = read_run(directory)
        except (PetraGraphError, OSError) as error:
            found[directory] = error
    records = {directory: record_of(directory, run, now) for directory, run in found.items()}
    by_name: dict[str, list[RecordedRun]] = {}
    for run in found.values():
        if isinstance(run, RecordedRun):
            by_name.setdefault(run.name, []).append(run)
    for alike in by_name.values():
        rows = find_differences([run.resolved for run in alike], ["run.directory"])
        for at, run in enumerate(alike):
            records[run.directory]["differs"] = {key: row[at] for key, row in rows.items()}

    by_age = sorted(records.values(), key=lambda record: (record["age_seconds"], record["run"]))
    if order == "age":
        return by_age
    nothing: dict[str, Any] = {"metric": None, "value": None, "smallest": False}
    bests = ((record, record["best"] or nothing) for record in by_age)
    ranked = [(_rank(best["metric"], best["value"], smallest=best["smallest"]), record) for record, best in bests]
    return [record for _, record in sorted(ranked, key=itemgetter(0))]


def record_of(directory: Path, run: RecordedRun | Exception, now: datetime | None = None) -> dict[str, Any]:
    """Return a run as JSON, or one that cannot be read with the reason."""
    start = began(directory)
    record: dict[str, Any] = {
        "run": directory.name,
        "directory": str(directory),
        "name": None,
        "status": "damaged",
        "seed": None,
        "epochs": None,
        "planned_epochs": None,
        "best": None,
        "final": {},
        "metrics": {},
        "samples_per_second": None,
        "problem": None,
        "changed": [],
        "differs": {},
        "began": start.isoformat(),
        "age_seconds": round(((now or datetime.now(UTC)) - start).total_seconds(), 1),
        "checkpoints": numbers(directory),
    }
    if not isinstance(run, RecordedRun):
        if is_locked(directory):  # between its first files
            return record | {"status": "running"}
        return record | {"problem": run.problems[0].message if isinstance(run, PetraGraphError) else str(run)}
    return record | {
        "name": run.name,
        "status": run.status,
        "seed": run.seed,
        "epochs": run.epochs,
        "planned_epochs": run.planned_epochs,
        "best": run.best and asdict(run.best),
        "final": {name: run.last(name) for name in run.metrics if name.startswith(("train/", "validation/", "test/"))},
        "metrics": {label: asdict(scale) for label, scale in run.scales.items()},
        "samples_per_second": run.rate,
        "problem": run.summary.get("error", [None])[0] if run.status == "failed" else None,
        "changed": run.summary.get("changed", []),
    }


def run_rows(records: Sequence[Mapping[str, Any]]) -> list[Sequence[str]]:
    """Return the records as the rows of a table, the heads first."""
    rows: list[Sequence[str]] = [("run", "status", "epochs", "best", "age", "")]
    for record in records:
        best, epochs = record["best"], record["epochs"]
        differs = in_words({key: [one] for key, one in record["differs"].items() if not key.startswith("graph.")})
        if any(key.startswith("graph.") for key in record["differs"]):
            differs.append("another network")
        remarks = [
            ", ".join(filter(None, differs)),
            "changed when resumed" if record["changed"] else "",
            plural(len(record["checkpoints"]), "checkpoint") if record["checkpoints"] else "",
            (record["problem"] or "").partition("\n")[0],
        ]
        value = best and value_text(best["metric"], best["value"], scales_in(record["metrics"]))
        rows.append(
            (
                record["run"],
                record["status"],
                "-" if epochs is None else f"{epochs}/{record['planned_epochs']}",
                f"{best['metric']} {value}" if best else "-",
                age(record["age_seconds"]),
                "; ".join(filter(None, remarks)),
            )
        )
    return rows
