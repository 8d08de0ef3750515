"""The runs of a folder: as groups of those that differ in their seed alone, the best first, as tables, and as JSON."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from attrs import asdict, frozen

from petra_graph.errors import PetraGraphError, shown
from petra_graph.plugins.loss_and_metric import Scale, scale_of, scales_in
from petra_graph.record.checkpoint import numbers
from petra_graph.record.run_directory import RecordedRun, began, grown_bytes, is_locked, read_run, run_directories
from petra_graph.report.progress import chosen_on, value_text
from petra_graph.report.tables import Column, name_column, value_column
from petra_graph.units import duration, memory, plain, plural

_OWN = ("name", "run.seed", "run.directory")  # keys in which repeated runs may differ
_LONGEST_NAME = 34  # the longest name of a group: it is written next to a line of a chart
_ABSENT = "-"  # in the place of a value that a specification does not have


# --- groups ---


@frozen(kw_only=True)
class RunGroup:
    """Runs that differ in their seed alone: one line of a chart."""

    name: str
    runs: Sequence[RecordedRun]
    by_seed: Sequence[RecordedRun]  # the one that came furthest, of equals the latest; a repetition has the same bits
    metric: str  # whose best value says how good the runs are; "" where none was measured
    best: Sequence[float]  # of each seed
    scales: Mapping[str, Scale]  # of its metrics; a run that ended at once may have none


def group_runs(runs: Sequence[RecordedRun]) -> list[RunGroup]:
    """Return the runs that differ in their seed alone together, the best group first, each named by what differs: "lr=0.1"."""
    found = defaultdict[str, list[RecordedRun]](list)
    for run in runs:
        values = [(key, value) for key, value in sorted(flatten(run.resolved)) if key not in _OWN]
        found[json.dumps(values, default=str)].append(run)
    alike, groups = list(found.values()), list[RunGroup]()
    names = in_words(find_differences([each[0].resolved for each in alike], _OWN)) or [each[0].name for each in alike]
    if max(map(len, names)) > _LONGEST_NAME:
        names = [f"{place}: {each[0].name}" for place, each in enumerate(alike, start=1)]
    for name, each in zip(names, alike, strict=True):
        by_seed = list({run.seed: run for run in sorted(each, key=lambda run: run.epochs)}.values())
        best = [run.best for run in by_seed if run.best]
        metric, found_best = best[0].metric if best else "", [one.value for one in best]
        scales = {label: scale for run in each for label, scale in run.scales.items()}
        groups.append(RunGroup(name=name, runs=each, by_seed=by_seed, metric=metric, best=found_best, scales=scales))

    def rank(group: RunGroup) -> tuple[bool, str, float]:  # those of one metric together, those without one last
        sign = 1 if scale_of(group.metric, group.scales).better == "lower" else -1
        return not group.metric, group.metric, sign * fmean(group.best or [0.0])

    return sorted(groups, key=rank)


def judged_by(groups: Sequence[RunGroup]) -> str:
    """Say by which value of runs the groups are sorted; nothing where no metric was measured."""
    metric = groups[0].metric
    return f"Judged by each run's best {metric}, {chosen_on(metric)}." if metric else ""


# --- what differs ---


def find_differences(resolved: Sequence[Mapping[str, Any]], but: Collection[str]) -> dict[str, list[str]]:
    """Return the keys, without those in `but`, in which specifications with every default differ, each with its values as TOML."""
    specs, rows = [dict(flatten(each)) for each in resolved], dict[str, list[str]]()
    for key in dict.fromkeys(key for spec in specs for key in spec if key not in but):
        row = [shown(spec[key]) if key in spec else _ABSENT for spec in specs]
        if len(set(row)) > 1:
            rows[key] = row

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
    last = list[str]()
    for key in rows:  # what says something: "method" of method.name, "layer.0" of method.keep.layer.0
        *_, above, own = ("", *key.split("."))
        last.append(f"{above}.{own}" if own.isdecimal() else above if above and own == "name" else own)
    heads = [short if last.count(short) == 1 else key for key, short in zip(rows, last, strict=True)]
    return [
        ", ".join(f"{head}={value.strip(chr(34))}" for head, value in zip(heads, values, strict=True))
        for values in zip(*rows.values(), strict=True)
    ]


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

    metric = groups[0].metric
    best = [one.best if one.metric == metric else [] for one in groups]
    add(f"best\n{metric}", best, partial(value_text, metric, scales=scales))
    # What says how runs ended: "test/top1" and its like come first, and own metrics of evaluations next.
    recorded = dict.fromkeys(name for group in groups for run in group.runs for name in run.metrics)
    usual = [f"{part}/{name}" for part in ("validation", "test") for name in ("top1", "loss")]
    own = [name for name in recorded if name.startswith(("validation/", "test/")) and name not in usual]
    for name in (name for name in (*usual, *own, "train/loss") if name in recorded):
        finals = [[value for run in group.by_seed if (value := run.last(name)) is not None] for group in groups]
        add(f"final\n{name}", finals, partial(value_text, name, scales=scales))
    add("samples\na second", [[run.rate for run in group.runs if run.rate] for group in groups], plain)
    held = [max(sum(map(grown_bytes, run.processes)) for run in group.runs) or None for group in groups]
    return columns + [value_column("memory\nmeasured", held, memory)] * any(held)


# --- the list of a folder ---


def run_records(runs: Sequence[RecordedRun]) -> list[dict[str, Any]]:
    """Return runs as a list of runs has them, in JSON's types, each with the keys in which they differ."""
    rows, records = find_differences([run.resolved for run in runs], ["run.directory"]), list[dict[str, Any]]()
    for at, run in enumerate(runs):
        start, errors = began(run.directory), run.summary.get("error") if run.status == "failed" else None
        about = {
            "run": run.directory.name,
            "directory": str(run.directory),
            "began": start.isoformat(),
            "age_seconds": round((datetime.now(UTC) - start).total_seconds(), 1),
            "checkpoints": numbers(run.directory),
            **{key: getattr(run, key) for key in ("name", "seed", "epochs", "planned_epochs", "status")},
            "problem": errors[0] if errors else None,
            "best": run.best and asdict(run.best),
            "samples_per_second": run.rate,
            "metrics": {label: asdict(scale) for label, scale in run.scales.items()},
            "differs": {key: row[at] for key, row in rows.items()},
        }
        records.append(about)
    return records


def run_row(record: Mapping[str, Any]) -> dict[str, str]:
    """Return one of `run_records` as the row of a table, by its heads."""
    best, differs, checkpoints = record["best"], record["differs"], len(record["checkpoints"])
    words = in_words({key: [one] for key, one in differs.items() if not key.startswith("graph.")})
    words += ["another network"] * any(key.startswith("graph.") for key in differs)
    words += [plural(checkpoints, "checkpoint")] * bool(checkpoints)
    problem = (record["problem"] or "").partition("\n")[0]
    value = best and value_text(best["metric"], best["value"], scales_in(record["metrics"]))
    return {
        "run": record["run"],
        "status": record["status"],
        "epochs": f"{record['epochs']}/{record['planned_epochs']}",
        "best": f"{best['metric']} {value}" if best else _ABSENT,
        "age": duration(round(record["age_seconds"])),
        "remarks": ", ".join(filter(None, [*words, problem])),
    }


def list_runs(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the records of the runs in a folder, the youngest first, and why others cannot be read; SpecError: it does not exist."""
    by_name, unread = defaultdict[str, list[RecordedRun]](list), list[str]()
    for directory in run_directories(folder):
        try:
            run = read_run(directory)
            by_name[run.name].append(run)
        except (PetraGraphError, OSError) as error:
            if not is_locked(directory):  # a process that holds the lock is between its first files
                unread.append(str(error))
    found = [record for alike in by_name.values() for record in run_records(alike)]
    return sorted(found, key=lambda one: (-datetime.fromisoformat(one["began"]).timestamp(), one["run"])), unread
