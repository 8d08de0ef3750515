"""The list of runs: one row each, whatever its state."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime

import pytest
from petra_graph_report.run.run_list import HEADS, rows, run_records


@pytest.fixture
def folder(saved_runs, tmp_path):
    """Runs of three days: done; killed; and one whose summary is damaged."""
    for day, name in ((1, "first"), (2, "second"), (3, "probed")):
        shutil.copytree(saved_runs[name], tmp_path / f"2026010{day}T000000Z-{name}-{day}")
    (tmp_path / "20260102T000000Z-second-2" / "summary.json").unlink()
    (tmp_path / "20260103T000000Z-probed-3" / "summary.json").write_text("{")
    (tmp_path / "notes").mkdir()
    (tmp_path / "20260104T000000Z-empty-4").mkdir()
    return tmp_path


NOW = datetime(2026, 1, 4, 12, tzinfo=UTC)


def test_the_youngest_first(folder):
    records = run_records(folder, now=NOW)
    assert [record["run"].split("-")[1] for record in records] == ["empty", "probed", "second", "first"]
    assert [record["status"] for record in records] == ["damaged", "damaged", "killed", "done"]
    assert [record["age_seconds"] for record in records] == [12 * 3600 + 86_400 * day for day in range(4)]


def test_the_best_first(folder, saved_runs):
    records = run_records(folder, "metric", NOW)
    values = [record["best"] and record["best"]["value"] for record in records]
    assert values[:2] == sorted(values[:2], reverse=True)
    assert values[2:] == [None, None]


def test_rows(folder, saved_runs):
    found = {row[0]: row for row in rows(run_records(folder, now=NOW))[1:]}
    summary = json.loads((saved_runs["first"] / "summary.json").read_text())
    row = found["20260101T000000Z-first-1"]
    assert row[1:3] == ("done", "2/2")
    assert row[4:] == ("3 d", "seed=1"), "the other run of its name has another seed"
    assert row[3].startswith("top1 ")
    assert float(row[3].split()[1]) >= round(100 * summary["test"]["top1"], 2)
    damaged = found["20260103T000000Z-probed-3"]
    assert damaged[1:4] == ("damaged", "-", "-")
    assert "summary.json is damaged" in damaged[-1]
    assert len(HEADS) == len(row)


def test_metrics_of_several_splits_say_theirs_and_are_sorted_apart(folder):
    """A share of the validation stood between shares of the test, and only one of them said of what it was."""
    records = run_records(folder, "metric", NOW)
    values = [record["best"] for record in records if record["best"]]
    for best, split in zip(values, ("validation", "test"), strict=True):
        best["metric"] = best["metric"].replace("test/", f"{split}/")
    assert [row[3].partition(" ")[0] for row in rows(records)[1:3]] == ["validation/top1", "test/top1"]


def test_what_differs_is_said_of_runs_of_one_name(folder):
    resolved = folder / "20260101T000000Z-first-1" / "resolved.toml"
    resolved.write_text(
        resolved.read_text().replace("batch = ", "workers = 3\nbatch = 1", 1).replace("workers = 0\n", "")
    )
    found = {record["run"].split("-")[1]: record["differs"] for record in run_records(folder, now=NOW)}
    assert found["first"].keys() == {"run.seed", "data.batch", "data.workers"}
    assert found["probed"] == found["empty"] == {}


def test_a_folder_that_is_a_run(folder):
    (record,) = run_records(folder / "20260101T000000Z-first-1")
    assert record["status"] == "done"
