"""`petra-graph runs`: the table, the JSON, and a folder without runs."""

from __future__ import annotations

import json
import sys

from petra_graph.cli.main import main


def test_a_table(saved_runs, capsys):
    folder = saved_runs["first"].parent
    assert main(["runs", str(folder)]) == 0
    heads, *rows = capsys.readouterr().out.splitlines()
    assert heads.split() == ["run", "status", "epochs", "best", "age"]
    assert sorted(row.split()[0] for row in rows) == sorted(directory.name for directory in saved_runs.values())
    assert {row.split()[1] for row in rows} == {"done"}


def test_a_terminal_of_80_columns(saved_runs, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["runs", str(saved_runs["first"].parent)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    row = next(place for place, line in enumerate(lines) if line.startswith(saved_runs["second"].name))
    assert lines[row + 1].startswith("    seed=2")


def test_json(saved_runs, capsys):
    assert main(["runs", str(saved_runs["first"].parent), "--sort", "metric", "--json"]) == 0
    values = [record["best"]["value"] for record in json.loads(capsys.readouterr().out)]
    assert values == sorted(values, reverse=True)


def test_no_runs_yet(here, capsys):
    assert main(["runs"]) == 0
    assert capsys.readouterr() == ("no runs in runs: `petra-graph run SPEC` makes one\n", "")
    (here / "other").mkdir()
    assert main(["runs", "other", "--json"]) == 0
    assert capsys.readouterr().out == "[]\n"


def test_a_folder_that_is_not_there(here, capsys):
    assert main(["runs", "nope"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.splitlines()[0]) == ("", "cannot read the folder nope: No such file or directory")
