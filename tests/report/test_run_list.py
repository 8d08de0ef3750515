"""The list of runs, one row each, whatever its state; the verbs `runs` and `report`; and groups of runs that differ in their seed alone."""

from __future__ import annotations

import json
import shutil

import pytest

from petra_graph.cli.main import main
from petra_graph.plugins.loss_and_metric import Scale
from petra_graph.record.run_directory import Point, read_run
from petra_graph.report.run_groups import group_columns, group_runs, list_runs


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


def test_the_youngest_first(folder):
    records, unread = list_runs(folder)
    assert [record["run"].split("-")[1] for record in records] == ["second", "first"]
    assert [record["status"] for record in records] == ["killed", "done"]
    assert [any(name in text for text in unread) for name in ("empty-4", "probed-3", "notes")] == [True, True, False]
    ages = [record["age_seconds"] for record in records]
    assert [age - ages[0] for age in ages] == pytest.approx([0, 86_400], abs=60)


def test_a_table_and_json(saved_runs, capsys):
    folder = saved_runs["first"].parent
    assert main(["runs", str(folder)]) == 0
    heads, *rows = capsys.readouterr().out.splitlines()
    assert heads.split() == ["run", "status", "epochs", "best", "age", "remarks"]
    assert sorted(row.split()[0] for row in rows) == sorted(directory.name for directory in saved_runs.values())
    assert main(["runs", str(folder), "--json"]) == 0
    assert {record["best"]["metric"] for record in json.loads(capsys.readouterr().out)} == {"test/top1"}


def test_the_page_of_several_runs(saved_runs, here, capsys):
    assert main(["report", *map(str, saved_runs.values()), str(saved_runs["first"]), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["output"] == "report.html"
    assert ": 3 runs" in (here / "report.html").read_text()
    assert sorted(run["seed"] for run in facts["runs"]) == [0, 1, 2]


# --- groups ---


@pytest.fixture
def runs(saved_runs):
    return [read_run(saved_runs[name]) for name in ("probed", "first", "second")]


def by_name(runs):
    return {group.name: [run.seed for run in group.runs] for group in group_runs(runs)}


def with_optimizer(run, **options):
    changed(run, optimizer={"name": "sgd", "options": options})


def changed(run, **tables):
    run.resolved = {**run.resolved, **tables}


def test_runs_that_differ_in_their_seed_alone_are_a_group(runs):
    assert by_name(runs) == {"1: probed": [0], "2: small": [1, 2]}, "what differs is long"


def test_the_best_group_is_first(saved_runs):
    for metric, order in (("test/top1", ["lr=0.2", "lr=0.1"]), ("test/loss", ["lr=0.1", "lr=0.2"])):
        runs = [read_run(saved_runs[name]) for name in ("first", "second")]
        for run, lr, value in zip(runs, (0.1, 0.2), (0.5, 0.75), strict=True):
            with_optimizer(run, lr=lr)
            run.metrics = {metric: [Point(epoch=1, step=1, value=value)]}
        assert list(by_name(runs)) == order


def test_the_spread_over_seeds(runs):
    group = group_runs(runs)[1]
    losses = [run.summary["test"]["loss"] for run in group.runs]
    (column,) = (one for one in group_columns([group]) if one.head == "final\ntest/loss")
    spread = abs(losses[0] - losses[1]) / 2**0.5
    assert column.cells == [f"{sum(losses) / 2:.4f} ± {spread:.4f}"]
    assert group.metric == "test/top1"


def test_how_a_metric_is_read_where_the_first_run_of_a_group_ended_before_it_was_written(saved_runs):
    runs = [read_run(saved_runs[name]) for name in ("first", "second")]
    runs[1].scales = {"mine": Scale(better="lower")}
    (group,) = group_runs(runs)
    assert group.scales == runs[1].scales
