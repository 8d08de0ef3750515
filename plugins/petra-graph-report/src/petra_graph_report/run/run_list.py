"""The runs in a folder as rows: each one's status, how far it came, its best metric, its age."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import attrs

from petra_graph.errors import PetraGraphError, Problem, SpecError, Where, likely_meant
from petra_graph.kinds.metric import scales_in
from petra_graph.record.checkpoint import numbers
from petra_graph.record.run_directory import is_locked
from petra_graph.record.run_folders import began, is_sweep, run_directories
from petra_graph.record.run_history import read_history
from petra_graph.spec.overrides import parse_overrides
from petra_graph.units import age, plural
from petra_graph_report.run.metric_values import metric_text
from petra_graph_report.run.recorded_run import RecordedRun, read_run
from petra_graph_report.run.spec_differences import find_differences, flatten, in_words

Order = Literal["age", "metric"]
HEADS = ("run", "status", "epochs", "best", "age", "")
_TEST = "test/"
_NOT_SHOWN = ("run.directory",)


class Condition(str):
    """A value that runs are asked for, as `--where`."""

    __slots__ = ()
    option = "--where"


def run_records(
    folder: Path, order: Order = "age", now: datetime | None = None, where: Iterable[str] = ()
) -> list[dict[str, Any]]:
    """Return the runs in a folder as JSON.

    Args:
        folder: whose directories are runs, or sweeps.
        order: "age": the youngest first; "metric": those of one metric and split together, the best first, runs without a metric last.
        now: from which ages are counted; None: the present.
        where: KEY=VALUE of the resolved specification, or status=VALUE: only the runs that have all of these.

    Raises:
        SpecError: the folder does not exist, or no run there has such a key.
    """
    now = now or datetime.now(UTC)
    found = _choose({directory: _read(directory) for directory in run_directories(folder)}, where)
    records = [_make_record(directory, run, now) for directory, run in found.items()]
    _add_differences(records, [run for run in found.values() if isinstance(run, RecordedRun)])
    records.sort(key=lambda record: (record["age_seconds"], record["run"]))
    if order == "metric":
        records.sort(key=_rank)
    return records


def rows(records: Iterable[dict[str, Any]]) -> list[Sequence[str]]:
    """Return the records as a table's rows, the heads first."""
    records = list(records)
    of_test = all(record["best"]["metric"].startswith(_TEST) for record in records if record["best"])
    return [HEADS, *(_row(record, of_test) for record in records)]


def _read(directory: Path) -> RecordedRun | Exception:
    try:
        return read_run(directory)
    except (PetraGraphError, OSError) as error:
        return error


def _choose(
    found: Mapping[Path, RecordedRun | Exception], where: Iterable[str]
) -> Mapping[Path, RecordedRun | Exception]:
    """Return the runs that meet all conditions.

    Raises:
        SpecError: a condition cannot be read, or no run has its key.
    """
    conditions, problems = parse_overrides(map(Condition, where))
    values = {directory: _values(directory, run) for directory, run in found.items()}
    keys = sorted({key for one in values.values() for key in one})
    wanted = [(".".join(one.keys), one) for one in conditions]
    for key, one in wanted:
        if found and key not in keys:
            meant = likely_meant(key, keys)
            hint = f"did you mean {meant[0]!r}?" if meant else "the keys of a run are in its resolved.toml"
            problems.append(Problem(message=f"no run has the key {key}", hint=hint, where=Where(file=one.source.file)))
    if problems:
        raise SpecError(problems)
    return {
        directory: run
        for directory, run in found.items()
        if all(key in values[directory] and values[directory][key] == one.value for key, one in wanted)
    }


def _values(directory: Path, run: RecordedRun | Exception) -> Mapping[str, Any]:
    if isinstance(run, Exception):
        return {"status": "running" if is_locked(directory) else "damaged"}
    return {**dict(flatten(run.resolved)), "status": run.status}


def _add_differences(records: Sequence[dict[str, Any]], runs: Sequence[RecordedRun]) -> None:
    """Add to each record the keys in which it and the other runs of its name differ, with its values."""
    by_name: dict[str, list[RecordedRun]] = {}
    for run in runs:
        by_name.setdefault(run.name, []).append(run)
    own: dict[str, dict[str, str]] = {}
    for alike in by_name.values():
        rows = find_differences([run.resolved for run in alike], _NOT_SHOWN)
        for place, run in enumerate(alike):
            own[str(run.directory)] = {key: values[place] for key, values in rows.items()}
    for record in records:
        record["differs"] = own.get(record["directory"], {})


def _make_record(directory: Path, run: RecordedRun | Exception, now: datetime) -> dict[str, Any]:
    start = began(directory)
    name = "/".join(directory.parts[-3:-1]) if is_sweep(directory.parent.parent) else directory.name
    record: dict[str, Any] = {"run": name, "directory": str(directory), "name": None, "status": "damaged"}
    record |= {"epochs": None, "planned_epochs": None, "best": None, "metrics": {}, "problem": None, "changed": []}
    record |= {"began": start.isoformat(), "age_seconds": round((now - start).total_seconds(), 1)}
    record |= {"checkpoints": numbers(directory)}
    if isinstance(run, Exception):
        if is_locked(directory):  # between its first files
            return record | {"status": "running"}
        return record | {"problem": run.problems[0].message if isinstance(run, PetraGraphError) else str(run)}
    errors = run.summary.get("error") if run.status == "failed" else None
    record |= {"name": run.name, "status": run.status, "epochs": run.epochs, "planned_epochs": run.planned_epochs}
    record["metrics"] = {label: attrs.asdict(scale) for label, scale in run.scales.items()}
    record["changed"] = [attrs.asdict(one) for one in read_history(directory)]
    return record | {"best": run.best and attrs.asdict(run.best), "problem": errors[0] if errors else None}


def _row(record: dict[str, Any], of_test: bool) -> Sequence[str]:
    """Return a row; a metric says its split, unless all metrics of the list are of the test."""
    best, value = record["best"], "-"
    if best is not None:
        value = metric_text(best["metric"], best["value"], scales_in(record["metrics"]))
        value = value.removeprefix(_TEST) if of_test else value
    differs = in_words({key: [one] for key, one in record["differs"].items() if not key.startswith("graph.")})
    if any(key.startswith("graph.") for key in record["differs"]):
        differs.append("another network")
    more = [
        ", ".join(differs),
        "changed when resumed" if record["changed"] else "",
        plural(len(record["checkpoints"]), "checkpoint") if record["checkpoints"] else "",
        (record["problem"] or "").partition("\n")[0],
    ]
    return (
        record["run"],
        record["status"],
        "-" if record["epochs"] is None else f"{record['epochs']}/{record['planned_epochs']}",
        value,
        age(record["age_seconds"]),
        "; ".join(filter(None, more)),
    )


def _rank(record: dict[str, Any]) -> tuple[str, float]:
    """Return what runs are sorted by: those of one metric together, the best first."""
    best = record["best"]
    if best is None:
        return "\U0010ffff", 0.0
    return best["metric"], best["value"] if best["smallest"] else -best["value"]
