"""The study of Table 2: rows that are specifications, pieces that continue, and the gap that it is for."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from petra_graph.planning.check.check_spec import check_spec
from tests.support import ROOT
from tools.studies import table2
from tools.studies.table2 import EACH_EPOCH, ROWS, Training, gaps, trainings

TINY = (
    *("--set", "data.name=random", "--set", "data.options={shape = [3, 32, 32], classes = 10, train = 128, test = 64}"),
    *("--set", "architecture.options.width=0.0625", "--set", "data.evaluation_batch=64", "--epochs", "2"),
)


@pytest.mark.parametrize("row", ROWS)
def test_rows_are_the_paper_s_recipe_in_fewer_epochs(row, tmp_path):
    (one,) = trainings([row], accumulation=8, epochs=30, seed=1)
    spec = check_spec(str(ROOT / one.spec), (f"data.options.root={tmp_path}", *one.overrides)).spec
    assert (spec.run.epochs, spec.run.seed, spec.lr_schedule.warmup_epochs) == (30, 1, 0.5)
    assert spec.lr_schedule.options["milestones"] == [15, 22.5]
    assert spec.data.batch * spec.method.accumulation == (128 if ROWS[row].baseline else 512)


def test_a_piece_stops_in_time_and_the_next_one_continues(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    (tmp_path / "data").mkdir()
    words = ["train", str(tmp_path / "data"), "--output", str(tmp_path), "--row", "petra 1f1b", *TINY]
    stopped = CliRunner().invoke(table2.main, [*words, "--minutes", "0"])
    assert stopped.exit_code == 1
    assert "not finished: petra-1f1b-k8-2-epochs-seed0 (exit code 130" in stopped.output
    done = CliRunner().invoke(table2.main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    (row,) = json.loads((tmp_path / "table2.json").read_text())["rows"].values()
    assert (row["status"], len(row[EACH_EPOCH]), row["accumulation"]) == ("done", 2, 8)


def test_a_row_that_stopped_before_its_first_epoch_is_shown(tmp_path, monkeypatch, capsys):
    """Beside one that has an accuracy, it ended the piece with a traceback."""
    cases = {name: Training(row=name, accumulation=8, epochs=2, seed=0) for name in ("petra lockstep", "petra 1f1b")}
    epochs = {"petra lockstep": [], "petra 1f1b": [61.25]}
    monkeypatch.setattr(table2, "series", lambda run, name, factor=1: epochs[run.name])

    class Study:
        def latest_run(self, case):
            return tmp_path / case

        def facts(self):
            return {}

    table2._add(tmp_path, Study(), cases)
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[-4:] for line in shown] == [["0", "of", "2", "epochs"], ["2", "epochs", "61.25", "%"]]


def test_the_gap_is_to_backpropagation_of_the_same_setting():
    def row(name, accuracy, *, accumulation=8, seed=0, status="done"):
        one = Training(row=name, accumulation=accumulation, epochs=30, seed=seed)
        facts = {"row": name, "accumulation": accumulation, "epochs": 30, "seed": seed, "status": status}
        return one.name, {**facts, EACH_EPOCH: [10.0, accuracy]}

    rows = dict((
        row("revnet18 backprop", 94.0),
        row("revnet18 backprop", 94.4, seed=1),
        row("petra 1f1b", 93.5),
        row("petra 1f1b", 94.1, seed=1),
        row("petra lockstep", 90.0, accumulation=1),
        row("petra lockstep", 93.0, status="interrupted"),
        row("resnet18 baseline", 95.0),
    ))  # fmt: skip
    assert gaps(rows) == {("petra 1f1b", 8): 0.4}
