"""The runs in a folder as rows: each one's status, how far it came, its best metric, its age, and what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import attrs

from petra_graph.errors import PetraGraphError
from petra_graph.plugins.loss_and_metric import scales_in
from petra_graph.record.checkpoint import numbers
from petra_graph.record.recorded_run import RecordedRun, began, read_run, run_directories
from petra_graph.record.run_directory import is_locked
from petra_graph.report.metric_text import value_text
from petra_graph.report.run_groups import find_differences, in_words
from petra_graph.units import age, plural

Order = Literal["age", "metric"]


def run_records(folder: Path, order: Order = "age", now: datetime | None = None) -> list[dict[str, Any]]:
    """Return the runs in a folder as JSON.

    Args:
        folder: whose directories are runs.
        order: "age": the youngest first; "metric": those of one metric and split together, the best first, runs without a metric last.
        now: from which ages are counted; None: the present.

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
        "best": run.best and attrs.asdict(run.best),
        "metrics": {label: attrs.asdict(scale) for label, scale in run.scales.items()},
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
