"""`petra-graph runs`: the table, the JSON, and a folder without runs."""

from __future__ import annotations

import json
import re

from petra_graph.cli.main import main


def test_a_table(saved_runs, capsys):
    folder = saved_runs["first"].parent
    assert main(["runs", str(folder)]) == 0
    heads, *rows = capsys.readouterr().out.splitlines()
    assert heads.split() == ["run", "status", "epochs", "best", "age"]
    assert sorted(row.split()[0] for row in rows) == sorted(directory.name for directory in saved_runs.values())
    assert {row.split()[1] for row in rows} == {"done"}


def test_lines_of_few_columns(saved_runs, capsys, monkeypatch):
    second = saved_runs["second"]
    for columns, below in (
        (80, "{name}  .* s  seed=2"),
        (70, "{name} .*\n    seed=2"),
        (40, "{name}\n    done .*\n    seed=2"),
    ):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert main(["runs", str(second.parent)]) == 0
        printed = capsys.readouterr().out
        assert max(map(len, printed.splitlines())) <= columns
        assert re.search(below.format(name=second.name), printed)


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


def test_where(saved_runs, capsys):
    folder = str(saved_runs["first"].parent)

    def found(*conditions):
        assert main(["runs", folder, "--json", *(word for one in conditions for word in ("--where", one))]) == 0
        return {record["directory"] for record in json.loads(capsys.readouterr().out)}

    first, second, probed = (str(saved_runs[name]) for name in ("first", "second", "probed"))
    assert found("run.seed=2") == {second}
    assert found("method.schedule=1f1b", "status=done", "optimizer.options.lr=5e-2") == {first, second}
    assert found("name=probed") == {probed}
    assert found("graph.node.head.options.outputs=10", "data.options.crop_padding=1.0") == {first, second, probed}
    assert found("run.seed=1", "name=probed") == set()
    assert main(["runs", folder, "--where", "run.seed=9"]) == 0
    assert capsys.readouterr().out == f"no runs in {folder} with run.seed=9\n"


def test_where_no_run_has_the_key(saved_runs, capsys):
    conditions = ("--where", "run.sed=1", "--where", "seed", "--where", "a.b=petra")
    assert main(["runs", str(saved_runs["first"].parent), *conditions]) == 2
    err = capsys.readouterr().err
    assert "--where seed: not KEY=VALUE" in err
    assert "--where run.sed=1: no run has the key run.sed\n    help: did you mean 'run.seed'?" in err
    assert "--where a.b=petra: no run has the key a.b\n    help: the keys of a run are in its resolved.toml" in err
