"""The runs of a folder: as groups of those that differ in their seed alone, the best first, as tables, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from attrs import asdict, frozen

from petra_graph.errors import PetraGraphError, shown
from petra_graph.plugins.loss_and_metric import scale_of, scales_in
from petra_graph.record.checkpoint import numbers
from petra_graph.record.recorded_run import RecordedRun, began, grown_bytes, read_run, run_directories
from petra_graph.record.run_directory import is_locked
from petra_graph.report.progress import Scales, chosen_on, final_metrics, value_text
from petra_graph.report.tables import Column, name_column, value_column
from petra_graph.units import duration, memory, plain, plural

_OWN = ("name", "run.seed", "run.directory")
"""Keys in which repeated runs may differ."""
_LONGEST_NAME = 34
"""The longest name of a group: it is written next to a line of a chart."""
_ABSENT = "-"
"""In the place of a value that a specification does not have."""


# --- groups ---


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
        return list({run.seed: run for run in sorted(self.runs, key=lambda run: run.epochs)}.values())

    @property
    def judged_by(self) -> str | None:
        """The metric whose best value says how good the runs are; None where none was measured."""
        return next((run.best.metric for run in self.by_seed if run.best), None)

    @property
    def best(self) -> list[float]:
        """The best evaluation of each seed."""
        return [run.best.value for run in self.by_seed if run.best]

    def final(self, metric: str) -> list[float]:
        """Return a metric's latest value of each seed."""
        return [value for run in self.by_seed if (value := run.last(metric)) is not None]


def group_runs(runs: Sequence[RecordedRun]) -> list[RunGroup]:
    """Return the runs that differ in their seed alone together, the best group first, each named by what differs: "lr=0.1"."""
    found: dict[str, list[RecordedRun]] = {}
    for run in runs:
        values = [(key, value) for key, value in sorted(flatten(run.resolved)) if key not in _OWN]
        found.setdefault(json.dumps(values, default=str), []).append(run)
    alike = list(found.values())
    names = in_words(find_differences([members[0].resolved for members in alike], _OWN)) or [
        members[0].name for members in alike
    ]
    if max(map(len, names)) > _LONGEST_NAME:
        names = [f"{place}: {members[0].name}" for place, members in enumerate(alike, start=1)]
    groups = [RunGroup(name=name, runs=members) for name, members in zip(names, alike, strict=True)]

    def rank(group: RunGroup) -> tuple[bool, str, float]:  # those of one metric together, those without one last
        metric = group.judged_by or ""
        sign = 1 if scale_of(metric, group.scales).better == "lower" else -1
        return not metric, metric, sign * fmean(group.best or [0.0])

    return sorted(groups, key=rank)


def judged_by(groups: Sequence[RunGroup]) -> str:
    """Say by which value of runs the groups are sorted; nothing where no metric was measured."""
    metric = groups[0].judged_by
    return f"Judged by each run's best {metric}, {chosen_on(metric)}." if metric else ""


# --- what differs ---


def find_differences(resolved: Sequence[Mapping[str, Any]], but: Collection[str]) -> dict[str, list[str]]:
    """Return the keys, without those in `but`, in which specifications with every default differ, each with its values as TOML."""
    specs = [dict(flatten(each)) for each in resolved]
    keys = dict.fromkeys(key for spec in specs for key in spec if key not in but)
    rows = {key: [shown(spec[key]) if key in spec else _ABSENT for spec in specs] for key in keys}
    rows = {key: row for key, row in rows.items() if len(set(row)) > 1}

    # Keys that only some have, and the schedule, follow from the name of a method or a plugin.
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
    last = [_short(key) for key in rows]
    heads = [short if last.count(short) == 1 else key for key, short in zip(rows, last, strict=True)]
    return [
        ", ".join(f"{head}={value.strip(chr(34))}" for head, value in zip(heads, values, strict=True))
        for values in zip(*rows.values(), strict=True)
    ]


def _short(key: str) -> str:
    """Return the last part of a key that says something: "method" of method.name, "layer.0" of method.keep.layer.0."""
    parts = key.split(".")
    if parts[-1].isdecimal():
        return ".".join(parts[-2:])
    return parts[-2] if parts[-1] == "name" and len(parts) > 1 else parts[-1]


def group_columns(groups: Sequence[RunGroup]) -> list[Column]:
    """Return the groups with the metric that judges the best one, their final metrics, speed and memory; mean ± deviation over seeds."""
    scales = {label: scale for group in groups for label, scale in group.scales.items()}
    columns = [name_column("group", [group.name for group in groups])]
    columns.append(value_column("runs", [len(group.runs) for group in groups]))

    def add(head: str, of_groups: Sequence[Sequence[float]], write: Callable[[float], str]) -> None:
        def text(values: Sequence[float]) -> str:
            return write(fmean(values)) + (f" ± {write(stdev(values))}" if len(values) > 1 else "")

        if any(of_groups):
            columns.append(value_column(head, [values or None for values in of_groups], text))

    metric = groups[0].judged_by or ""
    best = [one.best if one.judged_by == metric else [] for one in groups]
    add(f"best\n{metric}", best, partial(value_text, metric, scales=scales))
    for name in final_metrics(name for group in groups for run in group.runs for name in run.metrics):
        add(f"final\n{name}", [group.final(name) for group in groups], partial(value_text, name, scales=scales))
    add("samples\na second", [[run.rate for run in group.runs if run.rate] for group in groups], plain)
    held = [max(sum(map(grown_bytes, run.processes)) for run in group.runs) or None for group in groups]
    return columns + [value_column("memory\nmeasured", held, memory)] * any(held)


# --- the list of a folder ---


def run_record(directory: Path, run: RecordedRun | None, **more: Any) -> dict[str, Any]:
    """Return a run, None if it cannot be read, as a list of runs has it, in JSON's types; `more` are values in the place of its own."""
    start, failed = began(directory), run is not None and run.status == "failed"
    return {
        "run": directory.name,
        "directory": str(directory),
        "began": start.isoformat(),
        "age_seconds": round((datetime.now(UTC) - start).total_seconds(), 1),
        "checkpoints": numbers(directory),
        **{key: getattr(run, key, None) for key in ("name", "seed", "epochs", "planned_epochs", "status")},
        "problem": next(iter(run.summary.get("error", [])), None) if run and failed else None,
        "best": run and run.best and asdict(run.best),
        "samples_per_second": run and run.rate,
        "metrics": {label: asdict(scale) for label, scale in run.scales.items()} if run else {},
        "differs": {},
        **more,
    }


def run_records(runs: Sequence[RecordedRun]) -> list[dict[str, Any]]:
    """Return the records of runs, with the keys in which they differ."""
    rows = find_differences([run.resolved for run in runs], ["run.directory"])
    differs = [{key: row[at] for key, row in rows.items()} for at in range(len(runs))]
    return [run_record(run.directory, run, differs=own) for run, own in zip(runs, differs, strict=True)]


def run_row(record: Mapping[str, Any]) -> dict[str, str]:
    """Return what `run_record` has returned as the row of a table, by its heads."""
    best, differs, checkpoints = record["best"], record["differs"], len(record["checkpoints"])
    words = in_words({key: [one] for key, one in differs.items() if not key.startswith("graph.")})
    words += ["another network"] * any(key.startswith("graph.") for key in differs)
    words += [plural(checkpoints, "checkpoint")] * bool(checkpoints)
    problem = (record["problem"] or "").partition("\n")[0]
    value = best and value_text(best["metric"], best["value"], scales_in(record["metrics"]))
    return {
        "run": record["run"],
        "status": record["status"],
        "epochs": "-" if record["epochs"] is None else f"{record['epochs']}/{record['planned_epochs']}",
        "best": f"{best['metric']} {value}" if best else "-",
        "age": duration(round(record["age_seconds"])),
        "remarks": ", ".join(filter(None, [*words, problem])),
    }


def list_runs(folder: Path) -> list[dict[str, Any]]:
    """Return the records of the runs in a folder, the youngest first; raise SpecError if it does not exist."""
    found = list[dict[str, Any]]()
    by_name: dict[str, list[RecordedRun]] = {}
    for directory in run_directories(folder):
        try:
            run = read_run(directory)
            by_name.setdefault(run.name, []).append(run)
        except (PetraGraphError, OSError) as error:
            # A process that holds the lock is between its first files.
            busy = is_locked(directory)
            status, problem = ("running", None) if busy else ("damaged", str(error).partition("\n")[0])
            found.append(run_record(directory, None, status=status, problem=problem))
    for alike in by_name.values():
        found += run_records(alike)
    return sorted(found, key=lambda one: (-datetime.fromisoformat(one["began"]).timestamp(), one["run"]))
